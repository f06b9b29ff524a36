/* SPDX-License-Identifier: MIT */
#include "picture.h"
#include "util.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

#define WIDTH  1000
#define HEIGHT 490
#define TOP    146
#define BOTTOM 420

/* A panel's plotting area, and the values at its edges. */
struct panel {
	double left, right;
	double x_min, x_max, y_max;
};

static const char *const colours[PROTO_NOPS] = { "#c2571a", "#1f6f8b", "#6a994e" };

static double x_at(const struct panel *p, double x)
{
	return p->left + (x - p->x_min) / (p->x_max - p->x_min) * (p->right - p->left);
}

static double y_at(const struct panel *p, double y)
{
	return BOTTOM - y / p->y_max * (BOTTOM - TOP);
}

/* The smallest of 1, 2, 2.5, 5 times a power of ten that is not below v. */
static double nice_above(double v)
{
	static const double steps[] = { 1, 2, 2.5, 5, 10 };
	double power = pow(10, floor(log10(v > 0 ? v : 1)));

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		if (steps[i] * power >= v * 0.999999)
			return steps[i] * power;
	}
	return 10 * power;
}

static void draw_y_axis(FILE *f, struct panel *p, double most, const char *unit)
{
	double step = nice_above(most / 4);

	p->y_max = step * ceil(most / step);
	for (double y = 0; y <= p->y_max * 1.0001; y += step) {
		fprintf(f, "<path class='grid' d='M%.1f %.1fH%.1f'/>\n", p->left, y_at(p, y),
			p->right);
		fprintf(f, "<text class='tick' text-anchor='end' x='%.1f' y='%.1f'>%g</text>\n",
			p->left - 8, y_at(p, y) + 4, y);
	}
	fprintf(f, "<text class='tick' text-anchor='end' x='%.1f' y='%d'>%s</text>\n", p->left - 8,
		TOP - 14, unit);
}

static void draw_hist(FILE *f, const struct picture *picture)
{
	struct panel p = { .left = 70, .right = 470 };
	const struct hist *h = picture->hist;
	struct hist_bar bars[40];
	size_t n = hist_bars(h, hist_percentile(h, 99), bars, 40);
	double most = 0, width, median = (double)hist_percentile(h, 50) / 1e3;
	char text[UTIL_TEXT_MAX];

	fprintf(f, "<text class='head' x='%.0f' y='%d'>%s</text>\n", p.left, TOP - 42,
		picture->hist_title);
	if (n == 0)
		return;
	for (size_t i = 0; i < n; i++)
		most = fmax(most, 100.0 * (double)bars[i].count / (double)h->count);
	width = n > 1 ? (double)(bars[1].low - bars[0].low) / 1e3 : 1;
	p.x_min = (double)bars[0].low / 1e3;
	p.x_max = p.x_min + width * (double)n;
	draw_y_axis(f, &p, most, "%");
	for (size_t i = 0; i < n; i++) {
		double x = x_at(&p, p.x_min + width * (double)i);
		double y = y_at(&p, 100.0 * (double)bars[i].count / (double)h->count);

		fprintf(f, "<rect fill='%s' x='%.1f' y='%.1f' width='%.1f' height='%.1f'/>\n",
			colours[PROTO_SEND], x + 0.5, y,
			x_at(&p, p.x_min + width * (double)(i + 1)) - x - 1, BOTTOM - y);
	}
	for (size_t i = 0; i <= n; i += n > 20 ? 8 : n > 8 ? 4 : 1)
		fprintf(f, "<text class='tick' text-anchor='middle' x='%.1f' y='%d'>%g</text>\n",
			x_at(&p, p.x_min + width * (double)i), BOTTOM + 20,
			p.x_min + width * (double)i);
	fprintf(f,
		"<text class='tick' text-anchor='middle' x='%.1f' y='%d'>round trip, µs</text>\n",
		(p.left + p.right) / 2, BOTTOM + 42);
	fprintf(f, "<path class='mark' d='M%.1f %dV%d'/>\n", x_at(&p, median), TOP - 4, BOTTOM);
	fprintf(f, "<text class='tick' x='%.1f' y='%d'>median %s</text>\n", x_at(&p, median) + 6,
		TOP + 6, util_time_text(text, median * 1e3));
}

static void draw_line(FILE *f, const struct panel *p, const struct perf_rows *rows, uint32_t op,
		      double label_y)
{
	double x = 0, y = 0;
	bool any = false;

	fprintf(f, "<path fill='none' stroke='%s' stroke-width='2.5' d='", colours[op]);
	for (size_t i = 0; i < rows->n; i++) {
		if (rows->row[i].op != op)
			continue;
		x = x_at(p, log2((double)rows->row[i].size));
		y = y_at(p, perf_mib_per_s(&rows->row[i]) / 1024);
		fprintf(f, "%c%.1f %.1f", any ? 'L' : 'M', x, y);
		any = true;
	}
	fprintf(f, "'/>\n");
	if (any) {
		fprintf(f, "<circle fill='%s' r='3.5' cx='%.1f' cy='%.1f'/>\n", colours[op], x, y);
		fprintf(f, "<text class='label' style='fill:%s' x='%.1f' y='%.1f'>%s</text>\n",
			colours[op], x + 10, label_y, proto_op_name(op));
	}
}

/* The last value of each line decides where its name stands; names must not overlap. */
static void place_labels(const struct panel *p, const struct perf_rows *rows, double y[PROTO_NOPS])
{
	uint32_t order[PROTO_NOPS] = { 0, 1, 2 };

	for (uint32_t op = 0; op < PROTO_NOPS; op++)
		y[op] = BOTTOM;
	for (size_t i = 0; i < rows->n; i++)
		y[rows->row[i].op] = y_at(p, perf_mib_per_s(&rows->row[i]) / 1024) + 4;
	for (int pass = 0; pass < 2; pass++) {
		for (int i = 0; i < 2; i++) {
			if (y[order[i]] > y[order[i + 1]]) {
				uint32_t swap = order[i];

				order[i] = order[i + 1];
				order[i + 1] = swap;
			}
		}
	}
	for (int i = 1; i < PROTO_NOPS; i++)
		y[order[i]] = fmax(y[order[i]], y[order[i - 1]] + 16);
}

static void draw_bandwidth(FILE *f, const struct picture *picture)
{
	struct panel p = { .left = 560, .right = 920, .x_min = 64, .x_max = 0 };
	const struct perf_rows *rows = picture->bandwidth;
	double most = 0.001, label_y[PROTO_NOPS];
	char text[UTIL_TEXT_MAX];

	fprintf(f, "<text class='head' x='%.0f' y='%d'>Bandwidth by message size</text>\n", p.left,
		TOP - 42);
	for (size_t i = 0; i < rows->n; i++) {
		double x = log2((double)rows->row[i].size);

		p.x_min = fmin(p.x_min, x);
		p.x_max = fmax(p.x_max, x);
		most = fmax(most, perf_mib_per_s(&rows->row[i]) / 1024);
	}
	if (p.x_max <= p.x_min)
		return;
	draw_y_axis(f, &p, most, "GiB/s");
	for (double x = ceil(p.x_min); x <= p.x_max; x += 2)
		fprintf(f, "<text class='tick' text-anchor='middle' x='%.1f' y='%d'>%s</text>\n",
			x_at(&p, x), BOTTOM + 20,
			util_size_text(text, UINT64_C(1) << (unsigned int)x));
	place_labels(&p, rows, label_y);
	for (uint32_t op = 0; op < PROTO_NOPS; op++)
		draw_line(f, &p, rows, op, label_y[op]);
}

bool picture_write(const char *path, const struct picture *picture)
{
	FILE *f = fopen(path, "w");
	int saved;

	if (!f)
		return false;
	fprintf(f,
		"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' width='%d' height='%d'>\n"
		"<style>text{font-family:system-ui,'DejaVu Sans',sans-serif;fill:#333}\n"
		".title{font-size:20px;font-weight:600}.sub,.tick{font-size:12px;fill:#777}\n"
		".head{font-size:15px;font-weight:600}.label{font-size:13px;font-weight:600}\n"
		".grid{stroke:#e4e4e4;fill:none}.mark{stroke:#333;stroke-dasharray:3 3;fill:none}</style>\n"
		"<rect width='%d' height='%d' fill='#fff'/>\n"
		"<text class='title' x='28' y='36'>%s</text>\n<text class='sub' x='28' y='56'>%s</text>\n",
		WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT, picture->title, picture->subtitle);
	draw_hist(f, picture);
	draw_bandwidth(f, picture);
	fprintf(f, "</svg>\n");
	if (ferror(f)) {
		saved = errno;
		fclose(f);
		errno = saved;
		return false;
	}
	return fclose(f) == 0;
}

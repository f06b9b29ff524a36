/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "picture.h"

static struct hist hist;

static char *draw(const struct picture *picture)
{
	static char text[65536];
	char path[] = "/tmp/flue-picture-XXXXXX";
	int fd = mkstemp(path);
	ssize_t n;

	assert_true(fd >= 0);
	assert_true(picture_write(path, picture));
	n = read(fd, text, sizeof(text) - 1);
	assert_true(n > 0);
	text[n] = '\0';
	close(fd);
	unlink(path);
	/* Nothing that a viewer stumbles over. */
	assert_null(strstr(text, "nan"));
	assert_null(strstr(text, "inf'"));
	assert_non_null(strstr(text, "</svg>"));
	return text;
}

static struct picture plain(struct perf_rows *rows)
{
	return (struct picture) {
		.title = "T", .subtitle = "S", .hist_title = "H", .hist = &hist, .bandwidth = rows
	};
}

static void picture_shows_bars_and_a_line_for_each_operation(void **state)
{
	struct perf_row row[6];
	struct perf_rows rows = { row, 6, 6 };
	struct picture picture = plain(&rows);
	const char *svg;

	hist_init(&hist);
	for (uint64_t i = 0; i < 1000; i++)
		hist_add(&hist, 10000 + i * 37 % 5000);
	for (size_t i = 0; i < 6; i++) {
		memset(&row[i], 0, sizeof(row[i]));
		row[i].op = (uint32_t)(i % 3);
		row[i].size = i < 3 ? 1024 : 1 << 20;
		row[i].result.bytes = (i + 1) << 30;
		row[i].result.elapsed_ns = 1000000000;
	}
	svg = draw(&picture);
	assert_non_null(strstr(svg, "<rect fill="));
	assert_non_null(strstr(svg, ">median "));
	assert_non_null(strstr(svg, ">write</text>"));
	assert_non_null(strstr(svg, ">read</text>"));
	assert_non_null(strstr(svg, ">send</text>"));
	assert_non_null(strstr(svg, ">1 MiB</text>"));
}

static void picture_is_still_valid_when_there_is_nothing_to_show(void **state)
{
	struct perf_rows rows = { 0 };
	struct picture picture = plain(&rows);

	hist_init(&hist);
	draw(&picture);
	hist_add(&hist, 5); /* one value: no width */
	draw(&picture);
}

static void picture_reports_a_bad_path(void **state)
{
	struct perf_rows rows = { 0 };
	struct picture picture = plain(&rows);

	assert_false(picture_write("/nonexistent/x.svg", &picture));
	assert_int_equal(errno, ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(picture_shows_bars_and_a_line_for_each_operation),
		cmocka_unit_test(picture_is_still_valid_when_there_is_nothing_to_show),
		cmocka_unit_test(picture_reports_a_bad_path),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// A web server and an echo server, and a client for the second.
//   node echo.js server WEB_PORT ECHO_PORT DIRECTORY
//   node echo.js client ECHO_PORT CONNECTIONS BYTES
// The client compares what returns and prints the number of connections that were right.
'use strict';
const crypto = require('crypto');
const fs = require('fs');
const http = require('http');
const net = require('net');
const path = require('path');

function serve(web, echo, directory) {
	http.createServer((request, answer) => {
		const name = path.join(directory, path.normalize(request.url));
		if (request.method === 'PUT') {
			request.pipe(fs.createWriteStream(name)).on('finish', () => answer.end());
		} else {
			answer.setHeader('Content-Length', fs.statSync(name).size);
			fs.createReadStream(name).pipe(answer);
		}
	}).listen(web, '127.0.0.1');
	net.createServer({ allowHalfOpen: true }, (socket) => {
		socket.pipe(socket);
		socket.on('error', (why) => console.error('server: ' + why));
	}).listen(echo, '127.0.0.1');
	process.on('SIGTERM', () => process.exit(0));
}

// Pings of growing size, then everything at once.
function talk(port, size, done) {
	const octets = crypto.randomBytes(size);
	const socket = net.connect(port, '127.0.0.1');
	let back = [], length = 1, have = 0, bulk = false;
	const ping = () => {
		back = [];
		have = 0;
		bulk = length > 5000;
		if (bulk)
			socket.end(octets);
		else
			socket.write(octets.subarray(0, length));
	};
	socket.setNoDelay(true);
	socket.on('connect', ping);
	socket.on('data', (part) => {
		back.push(part);
		have += part.length;
		if (bulk || have < length)
			return;
		if (!Buffer.concat(back).equals(octets.subarray(0, length)))
			return done('ping of ' + length + ' differs');
		length = (length * 3 >> 1) + 1;
		ping();
	});
	socket.on('end', () => done(Buffer.concat(back).equals(octets) ? null : 'bulk differs'));
	socket.on('error', (why) => done(String(why)));
}

function call(port, count, size) {
	let right = 0, left = count;
	for (let i = 0; i < count; i++) {
		talk(port, size, (why) => {
			if (why)
				console.error('client ' + i + ': ' + why);
			else
				right++;
			if (--left === 0)
				console.log(right);
		});
	}
}

const words = process.argv.slice(2);
if (words[0] === 'server')
	serve(Number(words[1]), Number(words[2]), words[3]);
else
	call(Number(words[1]), Number(words[2]), Number(words[3]));

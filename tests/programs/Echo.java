// An echo server and its client, in the two ways in which Java has sockets.
//   java Echo.java server threads|selector PORT    a thread per connection, or one for all
//   java Echo.java client threads|selector PORT CONNECTIONS BYTES
// The client sends octets of its own per connection, compares what returns, and prints the number
// of connections that were right. A server ends when it is told to by a signal.
import java.io.DataInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;

public class Echo {
    static final AtomicInteger right = new AtomicInteger();

    // ---- a thread per connection ----

    static void serveThreads(int port) throws IOException {
        InetAddress here = InetAddress.getLoopbackAddress();
        try (ServerSocket listener = new ServerSocket(port, 200, here)) {
            while (true) {
                Socket socket = listener.accept();
                new Thread(() -> echo(socket)).start();
            }
        }
    }

    static void echo(Socket socket) {
        try (socket) {
            InputStream in = socket.getInputStream();
            OutputStream out = socket.getOutputStream();
            byte[] buffer = new byte[30000];
            int got;
            while ((got = in.read(buffer)) > 0)
                out.write(buffer, 0, got);
            socket.shutdownOutput();
        } catch (IOException e) {
            System.err.println("echo: " + e);
        }
    }

    static byte[] content(int number, int size) {
        byte[] octets = new byte[size];
        new Random(number).nextBytes(octets);
        return octets;
    }

    // Pings of growing size, then all at once while another thread sends.
    static void talk(int port, int number, int size) {
        try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), port)) {
            socket.setTcpNoDelay(true);
            socket.setSoTimeout(100000);
            DataInputStream in = new DataInputStream(socket.getInputStream());
            OutputStream out = socket.getOutputStream();
            byte[] octets = content(number, size);
            for (int length = 1; length < 5000; length = length * 3 / 2 + 1) {
                out.write(octets, 0, length);
                byte[] back = new byte[length];
                in.readFully(back);
                if (!java.util.Arrays.equals(back, 0, length, octets, 0, length))
                    throw new IOException("ping of " + length + " differs");
            }
            Thread sender = new Thread(() -> {
                try {
                    out.write(octets);
                    socket.shutdownOutput();
                } catch (IOException e) {
                    System.err.println("sender: " + e);
                }
            });
            sender.start();
            byte[] back = in.readAllBytes();
            sender.join();
            if (!java.util.Arrays.equals(back, octets))
                throw new IOException("bulk differs, " + back.length + " bytes");
            right.incrementAndGet();
        } catch (IOException | InterruptedException e) {
            System.err.println("client " + number + ": " + e);
        }
    }

    static void callThreads(int port, int count, int size) throws InterruptedException {
        Thread[] all = new Thread[count];
        for (int i = 0; i < count; i++) {
            int number = i;
            all[i] = new Thread(() -> talk(port, number, size));
            all[i].start();
        }
        for (Thread one : all)
            one.join();
    }

    // ---- one thread with a selector ----

    static void serveSelector(int port) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 200);
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                try {
                    if (key.isAcceptable()) {
                        SocketChannel channel = listener.accept();
                        channel.configureBlocking(false);
                        channel.register(selector, SelectionKey.OP_READ,
                                         ByteBuffer.allocateDirect(30000));
                    } else {
                        step(key);
                    }
                } catch (IOException e) {
                    System.err.println("selector: " + e);
                    key.channel().close();
                }
            }
            selector.selectedKeys().clear();
        }
    }

    // Reads only when everything was written.
    static void step(SelectionKey key) throws IOException {
        SocketChannel channel = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        if (key.isReadable()) {
            buffer.clear();
            if (channel.read(buffer) < 0) {
                channel.close();
                return;
            }
            buffer.flip();
        }
        channel.write(buffer);
        key.interestOps(buffer.hasRemaining() ? SelectionKey.OP_WRITE : SelectionKey.OP_READ);
    }

    static class Call {
        ByteBuffer out, in;
        byte[] octets;
    }

    static void callSelector(int port, int count, int size) throws IOException {
        Selector selector = Selector.open();
        for (int i = 0; i < count; i++) {
            SocketChannel channel = SocketChannel.open();
            channel.configureBlocking(false);
            channel.connect(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
            Call call = new Call();
            call.octets = content(i, size);
            call.out = ByteBuffer.wrap(call.octets);
            call.in = ByteBuffer.allocate(size);
            channel.register(selector, SelectionKey.OP_CONNECT, call);
        }
        int open = count;
        while (open > 0) {
            if (selector.select(100000) == 0)
                throw new IOException("nothing happens");
            for (SelectionKey key : selector.selectedKeys())
                open -= advance(key) ? 1 : 0;
            selector.selectedKeys().clear();
        }
    }

    // Whether that was the end of it.
    static boolean advance(SelectionKey key) throws IOException {
        SocketChannel channel = (SocketChannel) key.channel();
        Call call = (Call) key.attachment();
        if (key.isConnectable() && channel.finishConnect())
            key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
        if (key.isWritable()) {
            // At most a little more than what came back, so that turns alternate.
            int ahead = Math.min(call.in.position() + 200000, call.octets.length);
            call.out.limit(ahead);
            channel.write(call.out);
        }
        if (key.isReadable() && channel.read(call.in) < 0)
            throw new IOException("the server closed early");
        boolean room = call.out.position() < Math.min(call.in.position() + 200000,
                                                      call.octets.length);
        key.interestOps(SelectionKey.OP_READ | (room ? SelectionKey.OP_WRITE : 0));
        if (!call.in.hasRemaining()) {
            if (java.util.Arrays.equals(call.in.array(), call.octets))
                right.incrementAndGet();
            channel.close();
            return true;
        }
        return false;
    }

    public static void main(String[] words) throws Exception {
        boolean threads = words[1].equals("threads");
        int port = Integer.parseInt(words[2]);
        if (words[0].equals("server")) {
            if (threads)
                serveThreads(port);
            else
                serveSelector(port);
            return;
        }
        int count = Integer.parseInt(words[3]), size = Integer.parseInt(words[4]);
        if (threads)
            callThreads(port, count, size);
        else
            callSelector(port, count, size);
        System.out.println(right.get());
        System.exit(0);
    }
}

// The web server of the JDK, giving out a directory: java Files.java PORT DIRECTORY
import com.sun.net.httpserver.HttpServer;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Executors;

class Server {
    public static void main(String[] words) throws Exception {
        Path top = Path.of(words[1]);
        InetAddress here = InetAddress.getLoopbackAddress();
        HttpServer server =
            HttpServer.create(new InetSocketAddress(here, Integer.parseInt(words[0])), 200);
        server.createContext("/", exchange -> {
            Path path = top.resolve(exchange.getRequestURI().getPath().substring(1));
            exchange.sendResponseHeaders(200, Files.size(path));
            try (var out = exchange.getResponseBody()) {
                Files.copy(path, out);
            }
        });
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.start();
    }
}

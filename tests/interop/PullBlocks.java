import java.io.OutputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;

/** Pulls the blocks of a stream, {@code PullBlocks STREAM-URL FILE}, and writes how many there were. */
public final class PullBlocks {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        int number = 0;
        try (OutputStream out = Files.newOutputStream(Path.of(arguments[1]))) {
            while (true) {
                URI block = URI.create(arguments[0] + "/blocks/" + number + "?wait=20");
                HttpResponse<byte[]> answer = client.send(
                        HttpRequest.newBuilder(block).build(), HttpResponse.BodyHandlers.ofByteArray());
                if (answer.statusCode() == 204) {
                    break;
                }
                if (answer.statusCode() == 202) {
                    continue;
                }
                if (answer.statusCode() != 200) {
                    throw new IllegalStateException(answer.statusCode() + " " + new String(answer.body()));
                }
                out.write(answer.body());
                number++;
            }
        }
        System.out.println(number);
    }
}

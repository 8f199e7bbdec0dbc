package warmlog.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Runs Kafka's command line tools one after the other in one JVM.
 *
 * <p>Each line of standard input is one call as JSON: {"tool": class with a main method, "arguments", "text": its standard input}.
 * For each one line of JSON is printed: {"status", "output", "complaints"}, in which the status is what the tool would have ended
 * its process with (1 for an exception). What a tool does in a shutdown hook it does at the end of this program.
 */
public final class Tools {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int FAILED = 1;

    private Tools() {}

    /** Thrown instead of ending the process. Some tools catch all that is thrown and exit once more: the first status holds. */
    private static final class Exited extends Error {
        private static final long serialVersionUID = 1L;
        private static final AtomicReference<Integer> FIRST_STATUS = new AtomicReference<>();

        private Exited(int status) {
            super("exit status " + status, null, false, false);
            FIRST_STATUS.compareAndSet(null, status);
        }
    }

    public static void main(String[] none) throws Exception {
        PrintStream out = System.out;
        BufferedReader calls = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        throwInsteadOfExit();
        for (String call = calls.readLine(); call != null; call = calls.readLine()) {
            out.println(JSON.writeValueAsString(called(JSON.readTree(call))));
            out.flush();
        }
    }

    /** Kafka 4.4 has moved the class. */
    private static void throwInsteadOfExit() throws Exception {
        Class<?> exit;
        try {
            exit = Class.forName("org.apache.kafka.common.utils.internals.Exit");
        } catch (ClassNotFoundException older) {
            exit = Class.forName("org.apache.kafka.common.utils.Exit");
        }
        Class<?> procedure = Class.forName(exit.getName() + "$Procedure");
        Object thrower = Proxy.newProxyInstance(
                procedure.getClassLoader(), new Class<?>[] {procedure}, (proxy, method, arguments) -> {
                    throw new Exited((Integer) arguments[0]);
                });
        exit.getMethod("setExitProcedure", procedure).invoke(null, thrower);
        exit.getMethod("setHaltProcedure", procedure).invoke(null, thrower);
    }

    private static ObjectNode called(JsonNode call) throws Exception {
        InputStream in = System.in;
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        ByteArrayOutputStream complaints = new ByteArrayOutputStream();
        System.setIn(new ByteArrayInputStream(call.path("text").asText("").getBytes(StandardCharsets.UTF_8)));
        System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(complaints, true, StandardCharsets.UTF_8));
        int status;
        try {
            status = status(call);
        } finally {
            System.out.flush();
            System.err.flush();
            System.setIn(in);
            System.setOut(out);
            System.setErr(err);
        }
        return JSON.createObjectNode()
                .put("status", status)
                .put("output", output.toString(StandardCharsets.UTF_8))
                .put("complaints", complaints.toString(StandardCharsets.UTF_8));
    }

    private static int status(JsonNode call) throws Exception {
        List<String> arguments = new ArrayList<>();
        call.path("arguments").forEach(argument -> arguments.add(argument.asText()));
        Method main = Class.forName(call.path("tool").asText()).getMethod("main", String[].class);
        Exited.FIRST_STATUS.set(null);
        try {
            main.invoke(null, (Object) arguments.toArray(new String[0]));
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Exited)) {
                thrown.getCause().printStackTrace(System.err);
                Exited.FIRST_STATUS.compareAndSet(null, FAILED);
            }
        }
        Integer status = Exited.FIRST_STATUS.get();
        return status == null ? 0 : status;
    }
}

package warmlog.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.record.internal.DefaultRecordBatch;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;

/**
 * Reads batches as a broker does that validates them, and as a consumer does.
 *
 * <p>Each line of standard input is one batch in hexadecimal digits. For each one line is printed: what the broker's reader and the
 * consumer's found wrong with it, with a tab between them; empty for nothing.
 */
public final class Frames {
    private Frames() {}

    public static void main(String[] none) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            byte[] data = HexFormat.of().parseHex(line);
            System.out.println(fault(data, true) + "\t" + fault(data, false));
        }
    }

    private static String fault(byte[] data, boolean isBroker) {
        try {
            DefaultRecordBatch batch =
                    (DefaultRecordBatch) MemoryRecords.readableRecords(ByteBuffer.wrap(data)).batches().iterator().next();
            BufferSupplier buffers = BufferSupplier.NO_CACHING;
            try (CloseableIterator<Record> records =
                    isBroker ? batch.skipKeyValueIterator(buffers) : batch.streamingIterator(buffers)) {
                while (records.hasNext()) {
                    records.next();
                }
            }
            return "";
        } catch (Exception | Error thrown) {
            Throwable cause = thrown;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            return (cause.getClass().getSimpleName() + ": " + cause.getMessage()).replaceAll("\\s+", " ");
        }
    }
}

package warmlog.spring;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.ConcurrentMessageListenerContainer;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.DefaultAfterRollbackProcessor;
import org.springframework.kafka.listener.MessageListener;
import org.springframework.kafka.transaction.KafkaTransactionManager;
import org.springframework.util.backoff.FixedBackOff;

/**
 * A listener container of Spring that copies values from one topic to another in transactions, until its standard input ends.
 *
 * <p>Usage: Chain BOOTSTRAP NAME. Reads NAME-in with three threads and writes each value to NAME-out. A value that begins with
 * "poison" fails three times and goes to NAME-in-dlt. Prints "running".
 */
public final class Chain {
    private static final int THREADS = 3;

    private Chain() {}

    public static void main(String[] arguments) throws Exception {
        String name = arguments[1];
        DefaultKafkaProducerFactory<String, String> producers = new DefaultKafkaProducerFactory<>(producer(arguments[0]));
        producers.setTransactionIdPrefix(name + "-");
        KafkaTemplate<String, String> template = new KafkaTemplate<>(producers);

        ContainerProperties properties = new ContainerProperties(name + "-in");
        properties.setGroupId(name);
        properties.setKafkaAwareTransactionManager(new KafkaTransactionManager<>(producers));
        properties.setMessageListener((MessageListener<String, String>) record -> {
            if (record.value().startsWith("poison")) {
                throw new IllegalStateException(record.value());
            }
            template.send(name + "-out", record.partition(), record.key(), record.value());
        });
        ConcurrentMessageListenerContainer<String, String> container =
                new ConcurrentMessageListenerContainer<>(new DefaultKafkaConsumerFactory<>(consumer(arguments[0])), properties);
        container.setConcurrency(THREADS);
        DeadLetterPublishingRecoverer deadLetters = new DeadLetterPublishingRecoverer(template);
        container.setAfterRollbackProcessor(
                new DefaultAfterRollbackProcessor<>(deadLetters, new FixedBackOff(10, 2), template, true));
        container.start();
        System.out.println("running");
        while (System.in.read() >= 0) {
            continue;
        }
        CountDownLatch ended = new CountDownLatch(1);
        container.stop(ended::countDown);
        ended.await();
        producers.destroy();
    }

    private static Map<String, Object> producer(String bootstrap) {
        Map<String, Object> settings = new HashMap<>();
        settings.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(ProducerConfig.KEY_SERIALIZER_CLASS_CONFIG, StringSerializer.class);
        settings.put(ProducerConfig.VALUE_SERIALIZER_CLASS_CONFIG, StringSerializer.class);
        return settings;
    }

    private static Map<String, Object> consumer(String bootstrap) {
        Map<String, Object> settings = new HashMap<>();
        settings.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class);
        settings.put(ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class);
        settings.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed");
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        settings.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 20);
        return settings;
    }
}

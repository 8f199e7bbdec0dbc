// Lines by sarama.
package main

import (
	"bufio"
	"context"

	"github.com/IBM/sarama"

	"warmlog/interop/lines/task"
)

func main() {
	task.Run(produce, consume)
}

func config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	config.Producer.Retry.Max = 1000 // of 100 ms: it counts attempts, where others count time
	config.Metadata.Retry.Max = 1000
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	return config
}

func produce(brokers []string, topic string, lines *bufio.Scanner) {
	producer, err := sarama.NewAsyncProducer(brokers, config())
	task.Must(err)
	go func() {
		for failed := range producer.Errors() {
			task.Must(failed)
		}
	}()
	for lines.Scan() {
		producer.Input() <- &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(lines.Text())}
	}
	task.Must(producer.Close())
}

// A reader sends the values of all claims, which are consumed in parallel, through one channel.
type reader chan<- []byte

func (reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (values reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		values <- message.Value
		session.MarkMessage(message, "")
	}
	return nil
}

func consume(brokers []string, topic string, take func([]byte) bool) {
	group, err := sarama.NewConsumerGroup(brokers, "sarama", config())
	task.Must(err)
	values := make(chan []byte)
	go func() {
		for { // an error ends a session, and the next one begins
			_ = group.Consume(context.Background(), []string{topic}, reader(values))
		}
	}()
	for !take(<-values) {
	}
}

// Lines by franz-go with its default settings.
package main

import (
	"bufio"
	"context"

	"github.com/twmb/franz-go/pkg/kgo"

	"warmlog/interop/lines/task"
)

func main() {
	task.Run(produce, consume)
}

func produce(brokers []string, topic string, lines *bufio.Scanner) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic(topic))
	task.Must(err)
	defer client.Close()
	for lines.Scan() {
		record := kgo.StringRecord(lines.Text())
		client.Produce(context.Background(), record, func(_ *kgo.Record, err error) { task.Must(err) })
	}
	task.Must(client.Flush(context.Background()))
}

func consume(brokers []string, topic string, take func([]byte) bool) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumerGroup("franz"), kgo.ConsumeTopics(topic))
	task.Must(err)
	defer client.Close()
	for {
		for records := client.PollFetches(context.Background()).RecordIter(); !records.Done(); {
			if take(records.Next().Value) {
				return
			}
		}
	}
}

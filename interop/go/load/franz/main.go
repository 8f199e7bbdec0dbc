// Load by franz-go with its default settings.
package main

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"

	"warmlog/interop/load/task"
)

func main() {
	task.Run(produce, consume)
}

func produce(work task.Task, begin func()) {
	client := connected(work, kgo.DefaultProduceTopic(work.Topic))
	defer client.Close()
	begin()
	for range work.Records {
		client.Produce(context.Background(), &kgo.Record{Value: work.Value}, func(_ *kgo.Record, err error) { task.Must(err) })
	}
	task.Must(client.Flush(context.Background()))
}

func consume(work task.Task, begin func()) {
	client := connected(work, kgo.ConsumeTopics(work.Topic))
	defer client.Close()
	begin()
	for count := 0; count < work.Records; {
		fetches := client.PollFetches(context.Background())
		for _, failed := range fetches.Errors() {
			task.Must(failed.Err)
		}
		fetches.EachRecord(func(*kgo.Record) { count++ })
	}
}

func connected(work task.Task, options ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append(options, kgo.SeedBrokers(work.Address))...)
	task.Must(err)
	task.Must(client.Ping(context.Background()))
	return client
}

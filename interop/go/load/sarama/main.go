// Load by sarama with its default settings.
package main

import (
	"github.com/IBM/sarama"

	"warmlog/interop/load/task"
)

func main() {
	task.Run(produce, consume)
}

func produce(work task.Task, begin func()) {
	producer, err := sarama.NewAsyncProducer([]string{work.Address}, sarama.NewConfig())
	task.Must(err)
	begin()
	for range work.Records {
		select {
		case producer.Input() <- &sarama.ProducerMessage{Topic: work.Topic, Value: sarama.ByteEncoder(work.Value)}:
		case failed := <-producer.Errors():
			task.Must(failed)
		}
	}
	task.Must(producer.Close()) // returns when everything is acknowledged, or with what failed
}

func consume(work task.Task, begin func()) {
	consumer, err := sarama.NewConsumer([]string{work.Address}, sarama.NewConfig())
	task.Must(err)
	begin()
	partition, err := consumer.ConsumePartition(work.Topic, 0, sarama.OffsetOldest)
	task.Must(err)
	for range work.Records {
		<-partition.Messages()
	}
}

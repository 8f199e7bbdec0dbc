// A member of a group that copies the records of one topic to another in transactions, with sarama.
//
// Usage: sarama BOOTSTRAP NAME ID [stall]: copies NAME-in to NAME-out as a member of the group NAME, with ID as
// its transactional id, until its standard input ends. It prints a line for each transaction: "committed" or "aborted".
// With "stall" it prints "stalled" within its first transaction and waits there to be killed.
//
// The claims of a session are read one batch at a time, since a producer has one transaction at a time.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"warmlog/interop/story"
)

const (
	// Records of one transaction: few, so that there are many transactions.
	batch = 10
	// Every third transaction is aborted; the member then leaves its session and reads again from the committed offsets.
	abortEvery = 3
)

func main() {
	if len(os.Args) < 4 {
		story.Fail(fmt.Errorf("usage: %s BOOTSTRAP NAME ID [stall]", os.Args[0]))
	}
	bootstrap, name, id, stall := os.Args[1], os.Args[2], os.Args[3], len(os.Args) > 4
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, bufio.NewReader(os.Stdin))
		stop()
	}()
	settings := config(id)
	producer := story.Got(sarama.NewSyncProducer([]string{bootstrap}, settings))
	group := story.Got(sarama.NewConsumerGroup([]string{bootstrap}, name, settings))
	copier := &copier{producer: producer, name: name, stall: stall}
	for ctx.Err() == nil { // it returns whenever the group rebalances and after an aborted transaction
		session, leave := context.WithCancel(ctx)
		copier.leave = leave
		story.Must(group.Consume(session, []string{name + "-in"}, copier))
		leave()
	}
	story.Must(group.Close())
	story.Must(producer.Close())
}

func config(id string) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Transaction.ID = id
	config.Net.MaxOpenRequests = 1
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Session.Timeout = 2 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 100 * time.Millisecond
	return config
}

type copier struct {
	producer sarama.SyncProducer
	name     string
	stall    bool
	leave    context.CancelFunc
	turn     sync.Mutex // one transaction at a time
	number   int
}

func (*copier) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*copier) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (c *copier) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		var messages []*sarama.ConsumerMessage
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			messages = append(messages, message)
		case <-session.Context().Done():
			return nil
		}
	more:
		for len(messages) < batch {
			select {
			case message, open := <-claim.Messages():
				if !open {
					break more
				}
				messages = append(messages, message)
			default:
				break more
			}
		}
		if !c.copy(session, messages) {
			return nil
		}
	}
}

// copy writes the records in one transaction with the offset behind the last of them; it reports whether to go on.
func (c *copier) copy(session sarama.ConsumerGroupSession, messages []*sarama.ConsumerMessage) bool {
	c.turn.Lock()
	defer c.turn.Unlock()
	if session.Context().Err() != nil {
		return false
	}
	c.number++
	story.Must(c.producer.BeginTxn())
	var copied []*sarama.ProducerMessage
	for _, message := range messages {
		copied = append(copied, &sarama.ProducerMessage{
			Topic: c.name + "-out", Partition: message.Partition,
			Key: sarama.ByteEncoder(message.Key), Value: sarama.ByteEncoder(message.Value),
		})
	}
	story.Must(c.producer.SendMessages(copied))
	if c.stall {
		fmt.Println("stalled")
		select {}
	}
	last := messages[len(messages)-1]
	offsets := map[string][]*sarama.PartitionOffsetMetadata{
		last.Topic: {{Partition: last.Partition, Offset: last.Offset + 1}},
	}
	member := sarama.NewConsumerGroupMetadataFromSession(session, c.name, nil)
	err := c.producer.AddOffsetsToTxnWithGroupMetadata(offsets, member)
	if err == nil && c.number%abortEvery != 0 {
		story.Must(c.producer.CommitTxn())
		fmt.Println("committed")
		return true
	}
	story.Must(c.producer.AbortTxn()) // also when the group has rebalanced meanwhile
	fmt.Println("aborted")
	c.leave()
	return false
}

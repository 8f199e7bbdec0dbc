// A member of a group that copies the records of one topic to another in transactions, with franz-go.
//
// Usage: franz BOOTSTRAP NAME ID [stall]: copies NAME-in to NAME-out as a member of the group NAME, with ID as
// its transactional id, until its standard input ends. It prints a line for each transaction: "committed" or "aborted".
// With "stall" it prints "stalled" within its first transaction and waits there to be killed.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"warmlog/interop/story"
)

const (
	// Records of one transaction: few, so that there are many transactions.
	batch = 10
	// Every third transaction is aborted, and its records are read again.
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
	session := story.Got(kgo.NewGroupTransactSession(
		kgo.SeedBrokers(bootstrap),
		kgo.TransactionalID(id),
		kgo.ConsumerGroup(name),
		kgo.ConsumeTopics(name+"-in"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.SessionTimeout(2*time.Second),
		kgo.HeartbeatInterval(100*time.Millisecond),
	))
	defer session.Close()
	for number := 1; ; number++ {
		fetches := session.PollRecords(ctx, batch)
		if ctx.Err() != nil {
			return
		}
		for _, failed := range fetches.Errors() {
			story.Fail(failed.Err)
		}
		story.Must(session.Begin())
		produced := kgo.AbortingFirstErrPromise(session.Client())
		fetches.EachRecord(func(r *kgo.Record) {
			copied := &kgo.Record{Topic: name + "-out", Partition: r.Partition, Key: r.Key, Value: r.Value}
			session.Produce(context.Background(), copied, produced.Promise())
		})
		failed := produced.Err()
		if stall {
			story.Must(failed)
			fmt.Println("stalled")
			select {}
		}
		wanted := failed == nil && number%abortEvery != 0
		committed, err := session.End(context.Background(), kgo.TransactionEndTry(wanted))
		if err != nil {
			story.Fail(errors.Join(failed, err))
		}
		if committed {
			fmt.Println("committed")
		} else {
			fmt.Println("aborted")
		}
	}
}

// The story with franz-go and its admin client.
package main

import (
	"context"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"warmlog/interop/story"
)

var compressions = []kgo.CompressionCodec{
	kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
}

func main() {
	bootstrap, name := story.Arguments()
	ctx, cancel := context.WithTimeout(context.Background(), story.Limit)
	defer cancel()
	client := story.Got(kgo.NewClient(options(bootstrap)...))
	defer client.Close()
	admin := kadm.NewClient(client)
	report := story.Report{}

	setting := "12345"
	made := story.Got(admin.CreateTopic(ctx, int32(len(story.Codecs)), 1, map[string]*string{"max.message.bytes": &setting}, name))
	story.Must(made.Err)
	for codec := range story.Codecs {
		produce(ctx, bootstrap, name, codec)
	}
	ends := story.Got(admin.ListEndOffsets(ctx, name))
	report["ends"] = offsets(ends, name)
	report["starts"] = offsets(story.Got(admin.ListStartOffsets(ctx, name)), name)
	report["at_time"] = offsets(story.Got(admin.ListOffsetsAfterMilli(ctx, story.EpochMs+2500, name)), name)
	report["max_timestamp"] = offsets(story.Got(admin.ListMaxTimestampOffsets(ctx, name)), name)

	report["missing"] = consume(ctx, bootstrap, name)
	groups(ctx, admin, name, report)
	topics(ctx, admin, name, report)
	report.Print()
}

func produce(ctx context.Context, bootstrap, topic string, codec int) {
	client := story.Got(kgo.NewClient(append(options(bootstrap),
		kgo.ProducerBatchCompression(compressions[codec]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)...))
	defer client.Close()
	var records []*kgo.Record
	for _, row := range story.Rows(codec) {
		records = append(records, &kgo.Record{
			Topic: topic, Partition: int32(row.Partition), Key: row.Key, Value: row.Value, Timestamp: row.Time,
			Headers: []kgo.RecordHeader{{Key: "codec", Value: []byte(row.Header)}},
		})
	}
	story.Must(client.ProduceSync(ctx, records...).FirstErr())
}

func consume(ctx context.Context, bootstrap, name string) int {
	client := story.Got(kgo.NewClient(append(options(bootstrap),
		kgo.ConsumerGroup(name),
		kgo.ConsumeTopics(name),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
	)...))
	defer client.Close()
	var tally story.Tally
	for tally.Missing() > 0 {
		fetches := client.PollFetches(ctx)
		for _, failed := range fetches.Errors() {
			story.Fail(failed.Err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			tally.Read(int(r.Partition), r.Offset, r.Key, r.Value, string(r.Headers[0].Value), r.Timestamp)
		})
	}
	story.Must(client.CommitUncommittedOffsets(ctx))
	return tally.Missing()
}

func groups(ctx context.Context, admin *kadm.Client, name string, report story.Report) {
	group := story.Got(admin.DescribeGroups(ctx, name))[name]
	story.Must(group.Err)
	report["state"] = group.State
	_, listed := story.Got(admin.ListGroups(ctx))[name]
	report["listed"] = listed
	committed := story.Got(admin.FetchOffsets(ctx, name))
	at := make([]int64, len(story.Codecs))
	for i := range at {
		found, _ := committed.Lookup(name, int32(i))
		at[i] = found.At
	}
	report["committed"] = at
	lag := story.Got(admin.Lag(ctx, name))[name]
	story.Must(lag.Error())
	report["lag"] = lag.Lag.Total()
	var moved kadm.Offsets
	moved.AddOffset(name, 0, 3, -1)
	story.Must(admin.CommitAllOffsets(ctx, name, moved))
	first, _ := story.Got(admin.FetchOffsets(ctx, name)).Lookup(name, 0)
	report["moved"] = first.At
	deleted := story.Got(admin.DeleteOffsets(ctx, name, kadm.TopicsSet{name: {0: {}}}))
	story.Must(deleted.Error())
	_, kept := story.Got(admin.FetchOffsets(ctx, name)).Lookup(name, 0)
	report["kept_after_delete"] = kept
	story.Must(story.Got(admin.DeleteGroup(ctx, name)).Err)
}

func topics(ctx context.Context, admin *kadm.Client, name string, report story.Report) {
	report["setting"] = setting(ctx, admin, name)
	value := "23456"
	altered := story.Got(admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "max.message.bytes", Value: &value}}, name))
	_, err := altered.On(name, nil)
	story.Must(err)
	report["altered"] = story.Until("23456", func() string { return setting(ctx, admin, name) })
	_, err = story.Got(admin.CreatePartitions(ctx, 2, name)).On(name, nil)
	story.Must(err)
	var low kadm.Offsets
	low.AddOffset(name, 1, 5, -1)
	removed := story.Got(admin.DeleteRecords(ctx, low))
	story.Must(removed.Error())
	report["low"] = offsets(story.Got(admin.ListStartOffsets(ctx, name)), name)[1]
	dirs := story.Got(admin.DescribeAllLogDirs(ctx, kadm.TopicsSet{name: {0: {}}}))
	report["log_directories"] = len(dirs)
	report["controller"] = story.Got(admin.BrokerMetadata(ctx)).Controller
	story.Must(story.Got(admin.DeleteTopic(ctx, name)).Err)
	for story.Got(admin.ListTopics(ctx)).Has(name) {
		story.Must(ctx.Err())
	}
}

func setting(ctx context.Context, admin *kadm.Client, topic string) string {
	found := story.Got(story.Got(admin.DescribeTopicConfigs(ctx, topic)).On(topic, nil))
	story.Must(found.Err)
	for _, each := range found.Configs {
		if each.Key == "max.message.bytes" {
			return each.MaybeValue()
		}
	}
	return ""
}

func offsets(listed kadm.ListedOffsets, topic string) []int64 {
	story.Must(listed.Error())
	found := make([]int64, len(story.Codecs))
	for i := range found {
		each, _ := listed.Lookup(topic, int32(i))
		found[i] = each.Offset
	}
	return found
}

func options(bootstrap string) []kgo.Opt {
	found := []kgo.Opt{kgo.SeedBrokers(bootstrap)}
	if login := story.TheLogin(); login != nil {
		auth := scram.Auth{User: login.User, Pass: login.Password}
		found = append(found, kgo.DialTLSConfig(login.TLS), kgo.SASL(auth.AsSha512Mechanism()))
	}
	return found
}

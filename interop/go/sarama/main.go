// The story with sarama and its cluster admin.
package main

import (
	"context"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"

	"warmlog/interop/story"
)

var compressions = []sarama.CompressionCodec{
	sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD,
}

func main() {
	bootstrap, name := story.Arguments()
	ctx, cancel := context.WithTimeout(context.Background(), story.Limit)
	defer cancel()
	client := story.Got(sarama.NewClient([]string{bootstrap}, config()))
	admin := story.Got(sarama.NewClusterAdminFromClient(client))
	defer func() { story.Must(admin.Close()) }() // closes its client, too
	report := story.Report{}

	setting := "12345"
	detail := sarama.TopicDetail{
		NumPartitions: int32(len(story.Codecs)), ReplicationFactor: 1, ConfigEntries: map[string]*string{"max.message.bytes": &setting},
	}
	story.Must(admin.CreateTopic(name, &detail, false))
	for codec := range story.Codecs {
		produce(bootstrap, name, codec)
	}
	story.Must(client.RefreshMetadata(name))
	report["ends"] = offsets(client, name, sarama.OffsetNewest)
	report["starts"] = offsets(client, name, sarama.OffsetOldest)
	report["at_time"] = offsets(client, name, story.EpochMs+2500)

	report["missing"] = consume(ctx, bootstrap, name)
	groups(admin, name, report)
	topics(client, admin, name, report)
	report.Print()
}

func config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	if login := story.TheLogin(); login != nil {
		config.Net.TLS.Enable, config.Net.TLS.Config = true, login.TLS
		config.Net.SASL.Enable, config.Net.SASL.Mechanism = true, sarama.SASLTypeSCRAMSHA512
		config.Net.SASL.User, config.Net.SASL.Password = login.User, login.Password
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{} }
	}
	return config
}

func produce(bootstrap, topic string, codec int) {
	settings := config()
	settings.Producer.Compression = compressions[codec]
	settings.Producer.Idempotent = true
	settings.Producer.RequiredAcks = sarama.WaitForAll
	settings.Net.MaxOpenRequests = 1
	producer := story.Got(sarama.NewSyncProducer([]string{bootstrap}, settings))
	var messages []*sarama.ProducerMessage
	for _, row := range story.Rows(codec) {
		message := &sarama.ProducerMessage{
			Topic: topic, Partition: int32(row.Partition), Key: sarama.ByteEncoder(row.Key), Timestamp: row.Time,
			Headers: []sarama.RecordHeader{{Key: []byte("codec"), Value: []byte(row.Header)}},
		}
		if row.Value != nil {
			message.Value = sarama.ByteEncoder(row.Value)
		}
		messages = append(messages, message)
	}
	story.Must(producer.SendMessages(messages))
	story.Must(producer.Close())
}

// reader takes part in a group; its claims are read in goroutines of their own. What was handed over is marked, and
// committed when a claim ends, so that nothing comes twice if the group is shared out anew.
type reader struct {
	records chan *sarama.ConsumerMessage
}

func (reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (r reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	defer session.Commit()
	for message := range claim.Messages() {
		select {
		case r.records <- message:
			session.MarkMessage(message, "")
		case <-session.Context().Done():
			return nil
		}
	}
	return nil
}

func consume(ctx context.Context, bootstrap, name string) int {
	group := story.Got(sarama.NewConsumerGroup([]string{bootstrap}, name, config()))
	consuming, stop := context.WithCancel(ctx)
	records, ended := make(chan *sarama.ConsumerMessage), make(chan struct{})
	go func() {
		defer close(ended)
		for consuming.Err() == nil { // it returns whenever the group is shared out anew
			story.Must(group.Consume(consuming, []string{name}, reader{records}))
		}
	}()
	var tally story.Tally
	for tally.Missing() > 0 {
		select {
		case m := <-records:
			tally.Read(int(m.Partition), m.Offset, m.Key, m.Value, string(m.Headers[0].Value), m.Timestamp.UTC())
		case <-ctx.Done():
			story.Fail(ctx.Err())
		}
	}
	stop()
	<-ended
	story.Must(group.Close())
	return tally.Missing()
}

func groups(admin sarama.ClusterAdmin, name string, report story.Report) {
	group := story.Got(admin.DescribeConsumerGroups([]string{name}))[0]
	report["state"] = group.State
	listed := story.Got(admin.ListConsumerGroups())
	report["listed"] = listed[name] == "consumer"
	partitions := make([]int32, len(story.Codecs))
	for i := range partitions {
		partitions[i] = int32(i)
	}
	committed := story.Got(admin.ListConsumerGroupOffsets(name, map[string][]int32{name: partitions}))
	at := make([]int64, len(story.Codecs))
	for i := range at {
		at[i] = committed.GetBlock(name, int32(i)).Offset
	}
	report["committed"] = at
	story.Must(admin.DeleteConsumerGroupOffset(name, name, 0))
	committed = story.Got(admin.ListConsumerGroupOffsets(name, map[string][]int32{name: {0}}))
	report["kept_after_delete"] = committed.GetBlock(name, 0).Offset >= 0
	story.Must(admin.DeleteConsumerGroup(name))
}

func topics(client sarama.Client, admin sarama.ClusterAdmin, name string, report story.Report) {
	report["setting"] = setting(admin, name)
	value := "23456"
	entries := map[string]sarama.IncrementalAlterConfigsEntry{
		"max.message.bytes": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value},
	}
	story.Must(admin.IncrementalAlterConfig(sarama.TopicResource, name, entries, false))
	report["altered"] = story.Until("23456", func() string { return setting(admin, name) })
	story.Must(admin.CreatePartitions(name, int32(len(story.Codecs)+2), nil, false))
	story.Must(admin.DeleteRecords(name, map[int32]int64{1: 5}))
	report["low"] = offsets(client, name, sarama.OffsetOldest)[1]
	_, controller, err := admin.DescribeCluster()
	story.Must(err)
	report["controller"] = controller
	report["log_directories"] = len(story.Got(admin.DescribeLogDirs([]int32{controller})))
	story.Must(admin.DeleteTopic(name))
}

func setting(admin sarama.ClusterAdmin, topic string) string {
	asked := sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"max.message.bytes"}}
	for _, each := range story.Got(admin.DescribeConfig(asked)) {
		if each.Name == "max.message.bytes" {
			return each.Value
		}
	}
	return ""
}

func offsets(client sarama.Client, topic string, at int64) []int64 {
	found := make([]int64, len(story.Codecs))
	for i := range found {
		found[i] = story.Got(client.GetOffset(topic, int32(i), at))
	}
	return found
}

// conversation is a login with SCRAM, which sarama leaves to its user.
type conversation struct {
	*scram.ClientConversation
}

func (c *conversation) Begin(user, password, authzID string) error {
	client, err := scram.SHA512.NewClient(user, password, authzID)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
}

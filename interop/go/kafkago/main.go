// The story with segmentio's kafka-go: its writer, its reader in a group, and its client.
package main

import (
	"context"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/scram"

	"warmlog/interop/story"
)

// Left to itself it tells the name of the machine.
const clientID = "kafka-go"

var transport, dialer = &kafka.Transport{ClientID: clientID}, &kafka.Dialer{ClientID: clientID}

var compressions = []kafka.Compression{0, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd}

func main() {
	bootstrap, name := story.Arguments()
	if login := story.TheLogin(); login != nil {
		mechanism := story.Got(scram.Mechanism(scram.SHA512, login.User, login.Password))
		transport.TLS, transport.SASL = login.TLS, mechanism
		dialer.TLS, dialer.SASLMechanism = login.TLS, mechanism
	}
	ctx, cancel := context.WithTimeout(context.Background(), story.Limit)
	defer cancel()
	client := &kafka.Client{Addr: kafka.TCP(bootstrap), Transport: transport}
	report := story.Report{}

	made := story.Got(client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{
		Topic: name, NumPartitions: len(story.Codecs), ReplicationFactor: 1,
		ConfigEntries: []kafka.ConfigEntry{{ConfigName: "max.message.bytes", ConfigValue: "12345"}},
	}}}))
	story.Must(made.Errors[name])
	for codec := range story.Codecs {
		produce(ctx, bootstrap, name, codec)
	}
	report["ends"] = offsets(ctx, client, name, kafka.LastOffsetOf)
	report["starts"] = offsets(ctx, client, name, kafka.FirstOffsetOf)
	report["at_time"] = offsets(ctx, client, name, func(partition int) kafka.OffsetRequest {
		return kafka.TimeOffsetOf(partition, time.UnixMilli(story.EpochMs+2500))
	})

	report["missing"] = consume(ctx, bootstrap, name)
	groups(ctx, client, name, report)
	topics(ctx, client, name, report)
	report.Print()
}

func produce(ctx context.Context, bootstrap, topic string, codec int) {
	partition := kafka.BalancerFunc(func(kafka.Message, ...int) int { return codec })
	writer := &kafka.Writer{
		Addr: kafka.TCP(bootstrap), Topic: topic, Balancer: partition, Compression: compressions[codec],
		RequiredAcks: kafka.RequireAll, BatchTimeout: time.Millisecond, Transport: transport,
	}
	var messages []kafka.Message
	for _, row := range story.Rows(codec) {
		messages = append(messages, kafka.Message{
			Key: row.Key, Value: row.Value, Time: row.Time,
			Headers: []kafka.Header{{Key: "codec", Value: []byte(row.Header)}},
		})
	}
	story.Must(writer.WriteMessages(ctx, messages...))
	story.Must(writer.Close())
}

func consume(ctx context.Context, bootstrap, name string) int {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{bootstrap}, GroupID: name, Topic: name, StartOffset: kafka.FirstOffset,
		MaxWait: 100 * time.Millisecond, Dialer: dialer,
	})
	var tally story.Tally
	for tally.Missing() > 0 {
		m := story.Got(reader.FetchMessage(ctx))
		tally.Read(m.Partition, m.Offset, m.Key, m.Value, string(m.Headers[0].Value), m.Time)
		story.Must(reader.CommitMessages(ctx, m))
	}
	story.Must(reader.Close())
	return tally.Missing()
}

func groups(ctx context.Context, client *kafka.Client, name string, report story.Report) {
	described := story.Got(client.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{name}})).Groups[0]
	story.Must(described.Error)
	report["state"] = described.GroupState
	for _, each := range story.Got(client.ListGroups(ctx, &kafka.ListGroupsRequest{})).Groups {
		if each.GroupID == name {
			report["listed"] = true
		}
	}
	committed := story.Got(client.ConsumerOffsets(ctx, kafka.TopicAndGroup{Topic: name, GroupId: name}))
	at := make([]int64, len(story.Codecs))
	for i := range at {
		at[i] = committed[i]
	}
	report["committed"] = at
	deleted := story.Got(client.OffsetDelete(ctx, &kafka.OffsetDeleteRequest{GroupID: name, Topics: map[string][]int{name: {0}}}))
	story.Must(deleted.Error)
	committed = story.Got(client.ConsumerOffsets(ctx, kafka.TopicAndGroup{Topic: name, GroupId: name}))
	report["kept_after_delete"] = committed[0] >= 0
	groups := story.Got(client.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{name}}))
	story.Must(groups.Errors[name])
}

func topics(ctx context.Context, client *kafka.Client, name string, report story.Report) {
	report["setting"] = setting(ctx, client, name)
	altered := story.Got(client.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: name,
			Configs: []kafka.IncrementalAlterConfigsRequestConfig{{
				Name: "max.message.bytes", Value: "23456", ConfigOperation: kafka.ConfigOperationSet,
			}},
		}},
	}))
	story.Must(altered.Resources[0].Error)
	report["altered"] = story.Until("23456", func() string { return setting(ctx, client, name) })
	grown := story.Got(client.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{
		Topics: []kafka.TopicPartitionsConfig{{Name: name, Count: int32(len(story.Codecs) + 2)}},
	}))
	story.Must(grown.Errors[name])
	report["controller"] = story.Got(client.Metadata(ctx, &kafka.MetadataRequest{})).Controller.ID
	gone := story.Got(client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{name}}))
	story.Must(gone.Errors[name])
}

func setting(ctx context.Context, client *kafka.Client, topic string) string {
	described := story.Got(client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
		Resources: []kafka.DescribeConfigRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, ConfigNames: []string{"max.message.bytes"},
		}},
	})).Resources[0]
	story.Must(described.Error)
	return described.ConfigEntries[0].ConfigValue
}

func offsets(
	ctx context.Context, client *kafka.Client, topic string, at func(partition int) kafka.OffsetRequest,
) []int64 {
	var asked []kafka.OffsetRequest
	for i := range story.Codecs {
		asked = append(asked, at(i))
	}
	listed := story.Got(client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: asked}}))
	found := make([]int64, len(story.Codecs))
	for _, each := range listed.Topics[topic] {
		story.Must(each.Error)
		switch {
		case each.FirstOffset > 0 || each.LastOffset > 0:
			found[each.Partition] = max(each.FirstOffset, each.LastOffset)
		default:
			for offset := range each.Offsets {
				found[each.Partition] = offset
			}
		}
	}
	return found
}

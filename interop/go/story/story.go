// Package story is what the clients in this module tell alike: one topic of a partition for each codec, filled, read by a
// group, administrated and deleted. It owns the rows and the form of the report; it talks to no broker.
//
// A program is called with a bootstrap address and a name for its topic and group. It prints one JSON object and ends
// with status 0, or says on standard error what failed.
package story

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// Codecs in the order of their numbers, which are the partitions they are written to.
var Codecs = []string{"none", "gzip", "snappy", "lz4", "zstd"}

// Count of the records in each partition.
const Count = 20

// EpochMs is the time of the first record of a partition; the others follow a second apart.
const EpochMs = 1_700_000_000_000

// Limit of one program: it only ends one that has failed.
const Limit = 60 * time.Second

// Row is one record, for a client to make its own of.
type Row struct {
	Partition  int
	Key, Value []byte
	Header     string
	Time       time.Time
}

// Rows of one codec: keyed, with a header that names the codec, every fifth a tombstone.
func Rows(codec int) []Row {
	rows := make([]Row, Count)
	for i := range rows {
		rows[i] = Row{
			Partition: codec,
			Key:       []byte(fmt.Sprintf("key-%d", i)),
			Value:     bytes.Repeat([]byte(fmt.Sprintf("value %d ", i)), 20),
			Header:    Codecs[codec],
			Time:      time.UnixMilli(EpochMs + int64(i)*1000).UTC(),
		}
		if i%5 == 4 {
			rows[i].Value = nil
		}
	}
	return rows
}

// Tally counts what came back as it was sent.
type Tally struct {
	next map[int]int
}

// Read notes a record, which must be the next one of its partition.
func (t *Tally) Read(partition int, offset int64, key, value []byte, header string, at time.Time) {
	if t.next == nil {
		t.next = map[int]int{}
	}
	i := t.next[partition]
	row := Rows(partition)[i]
	same := bytes.Equal(key, row.Key) && bytes.Equal(value, row.Value) && header == row.Header && at.Equal(row.Time)
	if offset != int64(i) || !same {
		Fail(fmt.Errorf("partition %d has at %d %q %q %q %s", partition, offset, key, value, header, at))
	}
	t.next[partition]++
}

// Missing says how many records are still to come.
func (t *Tally) Missing() int {
	missing := Count * len(Codecs)
	for _, count := range t.next {
		missing -= count
	}
	return missing
}

// Report is what was seen, by what was asked.
type Report map[string]any

// Print ends the story.
func (r Report) Print() {
	Must(json.NewEncoder(os.Stdout).Encode(r))
}

// Until asks until the answer is the one that is awaited: real Kafka tells of a change before it knows it everywhere.
func Until[T comparable](awaited T, ask func() T) T {
	limit := time.Now().Add(Limit)
	for {
		if answer := ask(); answer == awaited || time.Now().After(limit) {
			return answer
		}
	}
}

// Must ends the program if there is an error.
func Must(err error) {
	if err != nil {
		Fail(err)
	}
}

// Got is Must for a call that also has a result.
func Got[T any](value T, err error) T {
	Must(err)
	return value
}

// Fail ends the program.
func Fail(err error) {
	fmt.Fprintln(os.Stderr, "failed:", err)
	panic(err)
}

// Arguments of the program: the address, and the name of its topic and group.
func Arguments() (bootstrap, name string) {
	if len(os.Args) != 3 {
		Fail(fmt.Errorf("usage: %s BOOTSTRAP NAME", os.Args[0]))
	}
	return os.Args[1], os.Args[2]
}

// Login is how a broker that encrypts and asks for a login is used: from the environment of the program.
type Login struct {
	User, Password string
	TLS            *tls.Config
}

// TheLogin of this program, or nil for a broker without.
func TheLogin() *Login {
	user := os.Getenv("STORY_USER")
	if user == "" {
		return nil
	}
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(Got(os.ReadFile(os.Getenv("STORY_CA")))) {
		Fail(fmt.Errorf("no certificate in STORY_CA"))
	}
	return &Login{User: user, Password: os.Getenv("STORY_PASSWORD"), TLS: &tls.Config{RootCAs: trusted}}
}

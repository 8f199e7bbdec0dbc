// Package task is what the line programs have in common: their arguments and what they print.
//
//	PROGRAM produce BROKERS TOPIC          appends each line of standard input, with acks=all and idempotence
//	PROGRAM consume BROKERS TOPIC COUNT    in a group, prints each value, until it has seen that many different ones
package task

import (
	"bufio"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
)

// Run calls one of the functions. `produce` gets the lines, `consume` calls `take` for each value until it is true.
func Run(produce func(brokers []string, topic string, lines *bufio.Scanner),
	consume func(brokers []string, topic string, take func([]byte) bool)) {
	brokers, topic := strings.Split(os.Args[2], ","), os.Args[3]
	if os.Args[1] == "produce" {
		produce(brokers, topic, bufio.NewScanner(os.Stdin))
		return
	}
	count, err := strconv.Atoi(os.Args[4])
	Must(err)
	seen := map[string]bool{}
	consume(brokers, topic, func(value []byte) bool {
		fmt.Println(string(value))
		seen[string(value)] = true
		return len(seen) >= count
	})
}

// Must end the program where there is an error.
func Must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

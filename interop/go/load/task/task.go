// Package task is what the load programs have in common: their arguments and what they print.
//
//	PROGRAM produce|consume HOST:PORT TOPIC RECORDS SIZE
//
// Partition 0 of the topic gets, or holds, that many records of SIZE bytes. A program prints records_per_s=N, measured
// from the first record to the last acknowledgement or to the last record; it is connected before.
package task

import (
	"fmt"
	"log"
	"os"
	"strconv"
	"time"
)

// Task of one program.
type Task struct {
	Address, Topic string
	Records        int
	Value          []byte
}

// Run does what the command line asks for and prints the rate. The work begins when a client calls its argument.
func Run(produce, consume func(task Task, begin func())) {
	if len(os.Args) != 6 {
		log.Fatal("usage: produce|consume HOST:PORT TOPIC RECORDS SIZE")
	}
	records, err := strconv.Atoi(os.Args[4])
	Must(err)
	size, err := strconv.Atoi(os.Args[5])
	Must(err)
	work, known := map[string]func(Task, func()){"produce": produce, "consume": consume}[os.Args[1]]
	if !known {
		log.Fatalf("neither produce nor consume: %s", os.Args[1])
	}
	var began time.Time
	work(Task{os.Args[2], os.Args[3], records, make([]byte, size)}, func() { began = time.Now() })
	fmt.Printf("records_per_s=%f\n", float64(records)/time.Since(began).Seconds())
}

// Must end the program where there is an error.
func Must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

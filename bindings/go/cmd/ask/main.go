// SPDX-License-Identifier: MIT

// Asks a model what a file says, greedily:
//
//	go run sharpi/cmd/ask MODEL.gguf FILE [TOKENS]
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"sharpi"
)

func run(path, question string, nTokens int) error {
	model, err := sharpi.Load(path, &sharpi.Options{ContextSize: 4096})
	if err != nil {
		return err
	}
	defer model.Close()
	session, err := model.NewSession()
	if err != nil {
		return err
	}
	defer session.Close()
	if err := session.SetSampler(sharpi.Greedy()); err != nil {
		return err
	}
	prompt, err := model.ChatTokens(sharpi.Message{Role: "user", Content: question})
	if err != nil {
		return err
	}
	if err := session.Prefill(prompt); err != nil {
		return err
	}
	err = session.Generate(nTokens, func(piece string) bool { fmt.Print(piece); return true })
	fmt.Println()
	return err
}

func main() {
	nTokens, err := 32, error(nil)
	if len(os.Args) > 3 {
		nTokens, err = strconv.Atoi(os.Args[3])
	}
	if len(os.Args) < 3 || err != nil {
		fmt.Fprintln(os.Stderr, "usage: ask MODEL.gguf FILE [TOKENS]")
		os.Exit(2)
	}
	question, err := os.ReadFile(os.Args[2])
	if err == nil {
		err = run(os.Args[1], strings.TrimRight(string(question), "\n"), nTokens)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ask:", err)
		os.Exit(1)
	}
}

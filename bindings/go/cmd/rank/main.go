// SPDX-License-Identifier: MIT

// How near documents are to a query, a line each: the score of a reranker, else the cosine of two
// vectors:
//
//	go run sharpi/cmd/rank MODEL.gguf QUERY DOCUMENT...
package main

import (
	"fmt"
	"os"

	"sharpi"
)

func score(embedder *sharpi.Embedder, query string, documents []string) ([]float32, error) {
	ranks, err := embedder.CanRank()
	if err != nil {
		return nil, err
	}
	if ranks {
		return embedder.Rerank(query, documents, "")
	}
	vectors, err := embedder.Embed(append([]string{query}, documents...), sharpi.PoolingAuto, 0)
	if err != nil {
		return nil, err
	}
	scores := make([]float32, len(documents))
	for i, vector := range vectors[1:] {
		for j, x := range vector {
			scores[i] += x * vectors[0][j]
		}
	}
	return scores, nil
}

func run(path, query string, documents []string) error {
	model, err := sharpi.Load(path, nil)
	if err != nil {
		return err
	}
	defer model.Close()
	embedder, err := model.NewEmbedder(0)
	if err != nil {
		return err
	}
	defer embedder.Close()
	scores, err := score(embedder, query, documents)
	for i, s := range scores {
		fmt.Printf("%.5f %s\n", s, documents[i])
	}
	return err
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: rank MODEL.gguf QUERY DOCUMENT...")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "rank:", err)
		os.Exit(1)
	}
}

// SPDX-License-Identifier: MIT

package sharpi

/*
#include <stdlib.h>
#include <string.h>
#include <sharpi.h>
*/
import "C"

import (
	"runtime"
	"unsafe"
)

// Pooling says what a vector is made of.
type Pooling uint32

// PoolingAuto is what the file says; Embed fails where it says nothing.
const (
	PoolingAuto = Pooling(C.SHARPI_POOLING_AUTO)
	PoolingMean = Pooling(C.SHARPI_POOLING_MEAN) // the mean of all rows
	PoolingCls  = Pooling(C.SHARPI_POOLING_CLS)  // the first row
	PoolingLast = Pooling(C.SHARPI_POOLING_LAST) // the last row
)

// Embedder reads texts without keeping them: vectors, and scores of documents for a query. It takes
// one call at a time, and answers a second one with StatusBusy; Cancel is for any goroutine.
type Embedder struct {
	c     *C.sharpi_embedder
	model *Model
}

// NewEmbedder makes an embedder. contextSize: tokens of the longest text; 0: as planned.
func (m *Model) NewEmbedder(contextSize uint32) (*Embedder, error) {
	defer runtime.KeepAlive(m)
	var wanted C.sharpi_embedder_params
	C.sharpi_embedder_params_init(&wanted, C.sizeof_sharpi_embedder_params)
	if contextSize != 0 {
		wanted.n_ctx = C.uint32_t(contextSize)
	}
	e := &Embedder{model: m}
	err := newError()
	if e := check(C.sharpi_embedder_create(m.c, &wanted, &e.c, &err), &err); e != nil {
		return nil, e
	}
	runtime.SetFinalizer(e, (*Embedder).Close)
	return e, nil
}

// Close gives the embedder's memory back, when the call that it is in has ended.
func (e *Embedder) Close() {
	C.sharpi_embedder_destroy(e.c)
	e.c = nil
	runtime.SetFinalizer(e, nil)
}

// Cancel ends the call that the embedder is in, or the next one: it fails with StatusCancelled.
func (e *Embedder) Cancel() {
	defer runtime.KeepAlive(e)
	C.sharpi_embedder_cancel(e.c)
}

// Resume takes a Cancel back that no call has met.
func (e *Embedder) Resume() {
	defer runtime.KeepAlive(e)
	C.sharpi_embedder_resume(e.c)
}

func (e *Embedder) info() (C.sharpi_embedder_summary, error) {
	defer runtime.KeepAlive(e)
	info := C.sharpi_embedder_summary{struct_size: C.sizeof_sharpi_embedder_summary}
	err := newError()
	return info, check(C.sharpi_embedder_info(e.c, &info, &err), &err)
}

// CanRank says whether Rerank has a score for texts.
func (e *Embedder) CanRank() (bool, error) {
	info, err := e.info()
	return info.can_rank != 0, err
}

// A text of tokens, and how many of them belong to the first of a pair; 0: all.
type textTokens struct {
	tokens []int32
	first  uint32
}

// inC copies texts to memory of C, which free() gives back: what C reads must not point to Go's.
func inC(texts []textTokens) (rows *C.sharpi_text_tokens, free func()) {
	rows = (*C.sharpi_text_tokens)(C.calloc(C.size_t(len(texts)+1), C.sizeof_sharpi_text_tokens))
	all := unsafe.Slice(rows, len(texts))
	for i, t := range texts {
		copied := (*C.int32_t)(C.malloc(C.size_t(4*len(t.tokens) + 4)))
		for j, token := range t.tokens {
			unsafe.Slice(copied, len(t.tokens))[j] = C.int32_t(token)
		}
		all[i].tokens, all[i].n_tokens = copied, C.uint32_t(len(t.tokens))
		all[i].n_first = C.uint32_t(t.first)
	}
	return rows, func() {
		for i := range all {
			C.free(unsafe.Pointer(all[i].tokens))
		}
		C.free(unsafe.Pointer(rows))
	}
}

// Embed gives a vector of each text, of length 1. nDims: its first so many elements; 0: all.
func (e *Embedder) Embed(texts []string, pooling Pooling, nDims uint32) ([][]float32, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	defer runtime.KeepAlive(e)
	var all []textTokens
	for _, text := range texts {
		ids, err := e.model.Tokenize(text)
		if err != nil {
			return nil, err
		}
		all = append(all, textTokens{tokens: ids})
	}
	info, failure := e.info()
	if failure != nil {
		return nil, failure
	}
	rows, free := inC(all)
	defer free()
	var wanted C.sharpi_embed_params
	C.sharpi_embed_params_init(&wanted, C.sizeof_sharpi_embed_params)
	wanted.pooling, wanted.n_dims = C.sharpi_pooling(pooling), C.uint32_t(nDims)
	out := make([]float32, len(texts)*int(info.n_embd))
	var n C.uint64_t
	err := newError()
	status := C.sharpi_embed(e.c, rows, C.sizeof_sharpi_text_tokens, C.uint32_t(len(texts)), &wanted,
		(*C.float)(&out[0]), C.uint64_t(len(out)), &n, &err)
	if e := check(status, &err); e != nil {
		return nil, e
	}
	vectors, width := make([][]float32, len(texts)), int(n)/len(texts)
	for i := range vectors {
		vectors[i] = out[i*width : (i+1)*width : (i+1)*width]
	}
	return vectors, nil
}

// Rerank says how well each document answers the query, 0 to 1. instruction: the task, for models
// that have a place for it; "": the usual one.
func (e *Embedder) Rerank(query string, documents []string, instruction string) ([]float32, error) {
	if len(documents) == 0 {
		return nil, nil
	}
	defer runtime.KeepAlive(e)
	var all []textTokens
	for _, document := range documents {
		pair, err := e.pair(query, document, instruction)
		if err != nil {
			return nil, err
		}
		all = append(all, pair)
	}
	rows, free := inC(all)
	defer free()
	scores := make([]float32, len(documents))
	err := newError()
	status := C.sharpi_rerank(e.c, rows, C.sizeof_sharpi_text_tokens, C.uint32_t(len(documents)), nil,
		(*C.float)(&scores[0]), &err)
	return scores, check(status, &err)
}

func (e *Embedder) pair(query, document, instruction string) (textTokens, error) {
	first, second := cBytes(query), cBytes(document)
	defer C.free(unsafe.Pointer(first))
	defer C.free(unsafe.Pointer(second))
	var task *C.char
	if instruction != "" {
		task = C.CString(instruction)
		defer C.free(unsafe.Pointer(task))
	}
	var nFirst C.uint32_t
	ask := func(out *C.int32_t, room C.uint32_t, n *C.uint32_t, err *C.sharpi_error) C.sharpi_status {
		return C.sharpi_rank_tokenize(e.model.c, first, C.size_t(len(query)), second,
			C.size_t(len(document)), task, out, room, n, &nFirst, err)
	}
	ids, err := tokens(len(query)+len(document)+64, ask)
	return textTokens{ids, uint32(nFirst)}, err
}

// SPDX-License-Identifier: MIT

// Plans and loads a GGUF model, reads a prompt and prints what follows, greedily:
//
//	go build -o generate . && ./generate MODEL.gguf PROMPT [TOKENS]
//
// cgo reads sharpi.h itself, so there are no declarations to keep in line with it. pkg-config says
// where header and library are; the linked library is found at run time as any other.
package main

/*
#cgo pkg-config: sharpi
#include <stdlib.h>
#include <sharpi.h>

int32_t onProgress(void *user_data, uint32_t phase, uint64_t done, uint64_t total);
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime/cgo"
	"strconv"
	"unsafe"
)

// A Go value that C hands back to a callback travels as a cgo.Handle in memory of C.
//
//export onProgress
func onProgress(userData unsafe.Pointer, phase C.uint32_t, done, total C.uint64_t) C.int32_t {
	*(*cgo.Handle)(userData).Value().(*int)++
	return 0
}

func newError() C.sharpi_error {
	return C.sharpi_error{struct_size: C.sizeof_sharpi_error}
}

func check(status C.sharpi_status, err *C.sharpi_error) error {
	if status == C.SHARPI_OK {
		return nil
	}
	name := C.GoString(C.sharpi_status_name(status))
	return errors.New(name + ": " + C.GoString(&err.text[0]))
}

func kvName(dtype C.sharpi_kv_dtype) string {
	switch dtype {
	case C.SHARPI_KV_F32:
		return "f32"
	case C.SHARPI_KV_BF16:
		return "bf16"
	case C.SHARPI_KV_Q8_0:
		return "q8_0"
	case C.SHARPI_KV_Q4:
		return "q4"
	}
	return "none"
}

func makePlan(context *C.sharpi_context, path string) (*C.sharpi_plan, error) {
	// Memory of Go that C reads must not point to memory of Go: the inner struct is C's.
	session := (*C.sharpi_session_params)(C.malloc(C.sizeof_sharpi_session_params))
	defer C.free(unsafe.Pointer(session))
	C.sharpi_session_params_init(session, C.sizeof_sharpi_session_params)
	session.n_ctx = 256
	session.k_dtype = C.SHARPI_KV_BF16
	session.v_dtype = C.SHARPI_KV_BF16
	var options C.sharpi_plan_params
	C.sharpi_plan_params_init(&options, C.sizeof_sharpi_plan_params)
	options.n_gpu_layers = 0
	options.session = session

	file := C.CString(path)
	defer C.free(unsafe.Pointer(file))
	var plan *C.sharpi_plan
	err := newError()
	return plan, check(C.sharpi_plan_create(context, file, &options, &plan, &err), &err)
}

func printPlan(plan *C.sharpi_plan) error {
	err := newError()
	summary := C.sharpi_plan_summary{struct_size: C.sizeof_sharpi_plan_summary}
	if e := check(C.sharpi_plan_info(plan, &summary, &err), &err); e != nil {
		return e
	}
	rows := make([]C.sharpi_memory_row, summary.n_rows)
	var n C.uint32_t
	status := C.sharpi_plan_rows(plan, &rows[0], C.sizeof_sharpi_memory_row, summary.n_rows, &n, &err)
	if e := check(status, &err); e != nil {
		return e
	}
	var kv C.uint64_t
	for _, row := range rows {
		if row.purpose == C.SHARPI_ROW_KV {
			kv += row.payload_bytes
		}
	}
	fmt.Printf("plan: context %d, KV %s/%s of %d bytes, %d rows\n", summary.n_ctx,
		kvName(summary.k_dtype), kvName(summary.v_dtype), kv, n)
	return nil
}

func loadModel(path string) (*C.sharpi_model, error) {
	err := newError()
	var options C.sharpi_context_params
	C.sharpi_context_params_init(&options, C.sizeof_sharpi_context_params)
	options.n_threads = 2
	var context *C.sharpi_context
	if e := check(C.sharpi_context_create(&options, &context, &err), &err); e != nil {
		return nil, e
	}
	// The model keeps the plan and the context alive; our references go here.
	defer C.sharpi_context_destroy(context)
	plan, e := makePlan(context, path)
	if e != nil {
		return nil, e
	}
	defer C.sharpi_plan_destroy(plan)
	if e := printPlan(plan); e != nil {
		return nil, e
	}
	var model *C.sharpi_model
	return model, check(C.sharpi_model_load(plan, nil, nil, &model, &err), &err)
}

func tokenize(model *C.sharpi_model, text string) ([]C.int32_t, error) {
	err := newError()
	utf8 := C.CString(text)
	defer C.free(unsafe.Pointer(utf8))
	tokens := make([]C.int32_t, len(text)+8) // a token has a byte at least, besides BOS and EOS
	var n C.uint32_t
	status := C.sharpi_tokenize(model, utf8, C.size_t(len(text)), C.SHARPI_TOKENIZE_ADD_SPECIAL,
		&tokens[0], C.uint32_t(len(tokens)), &n, &err)
	if e := check(status, &err); e != nil {
		return nil, e
	}
	if n == 0 {
		return nil, errors.New("the prompt has no tokens")
	}
	return tokens[:n], nil
}

func readPrompt(session *C.sharpi_session, tokens []C.int32_t) error {
	calls := 0
	handle := cgo.NewHandle(&calls)
	defer handle.Delete()
	userData := C.malloc(C.size_t(unsafe.Sizeof(handle)))
	defer C.free(userData)
	*(*cgo.Handle)(userData) = handle

	err := newError()
	var options C.sharpi_prefill_params
	C.sharpi_prefill_params_init(&options, C.sizeof_sharpi_prefill_params)
	options.progress = C.sharpi_progress_fn(C.onProgress)
	options.user_data = userData
	var committed C.uint32_t
	status := C.sharpi_session_prefill(session, &tokens[0], C.uint32_t(len(tokens)), &options,
		&committed, &err)
	if e := check(status, &err); e != nil {
		return e
	}
	fmt.Printf("prompt: %d tokens, progress told %d times\n", committed, calls)
	return nil
}

// Samples with temperature 0 and prints whole characters as they come.
func generate(model *C.sharpi_model, session *C.sharpi_session, nTokens int) error {
	err := newError()
	var greedy C.sharpi_sampler_params
	C.sharpi_sampler_params_init(&greedy, C.sizeof_sharpi_sampler_params)
	greedy.temperature = 0
	if e := check(C.sharpi_session_set_sampler(session, &greedy, &err), &err); e != nil {
		return e
	}
	var stream C.sharpi_text_stream
	var piece [1024]C.char
	fmt.Print("text:")
	for i := 0; i < nTokens; i++ {
		var token C.int32_t
		var n C.uint32_t
		var length C.size_t
		if e := check(C.sharpi_session_step(session, nil, &token, 1, &n, &err), &err); e != nil {
			return e
		}
		if C.sharpi_token_is_end(model, token) != 0 {
			break
		}
		status := C.sharpi_detokenize_stream(model, &stream, &token, 1, 0, &piece[0],
			C.size_t(len(piece)), &length, &err)
		if e := check(status, &err); e != nil {
			return e
		}
		fmt.Print(C.GoStringN(&piece[0], C.int(length)))
	}
	fmt.Println()
	return nil
}

func run(path, prompt string, nTokens int) error {
	version := C.sharpi_version()
	fmt.Printf("library: %d.%d\n", version/10000, version/100%100)
	model, e := loadModel(path)
	if e != nil {
		return e
	}
	defer C.sharpi_model_destroy(model)
	err := newError()
	var session *C.sharpi_session
	if e := check(C.sharpi_session_create(model, nil, &session, &err), &err); e != nil {
		return e
	}
	defer C.sharpi_session_destroy(session)

	tokens, e := tokenize(model, prompt)
	if e != nil {
		return e
	}
	if e := readPrompt(session, tokens); e != nil {
		return e
	}
	if e := generate(model, session, nTokens); e != nil {
		return e
	}
	info := C.sharpi_session_summary{struct_size: C.sizeof_sharpi_session_summary}
	if e := check(C.sharpi_session_info(session, &info, &err), &err); e != nil {
		return e
	}
	fmt.Printf("session: %d tokens, KV %s/%s\n", info.n_tokens, kvName(info.k_dtype),
		kvName(info.v_dtype))
	return nil
}

func main() {
	nTokens, e := 32, error(nil)
	if len(os.Args) > 3 {
		nTokens, e = strconv.Atoi(os.Args[3])
	}
	if len(os.Args) < 3 || e != nil {
		fmt.Fprintln(os.Stderr, "usage: generate MODEL.gguf PROMPT [TOKENS]")
		os.Exit(2)
	}
	if e := run(os.Args[1], os.Args[2], nTokens); e != nil {
		fmt.Fprintln(os.Stderr, "generate:", e)
		os.Exit(1)
	}
}

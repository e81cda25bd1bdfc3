// SPDX-License-Identifier: MIT

// Package sharpi is libsharpi for Go: GGUF language models on a GPU and a CPU together, with the KV
// cache as storage that is priced before it is taken.
//
//	model, err := sharpi.Load("model.gguf", nil)
//	session, err := model.NewSession()
//	prompt, err := model.ChatTokens(sharpi.Message{Role: "user", Content: "What is a KV cache?"})
//	err = session.Prefill(prompt)
//	err = session.Generate(256, func(piece string) bool { fmt.Print(piece); return true })
//
// A Model is for any goroutine. A Session takes one call at a time, and answers a second one with
// StatusBusy; Cancel is for any goroutine. Close gives memory back; without it a finalizer does,
// some time. What this package lacks of the library is in its header, which cgo reads.
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

// Statuses that programs ask for; the header has all.
const (
	StatusBusy       = int(C.SHARPI_E_BUSY)
	StatusCancelled  = int(C.SHARPI_E_CANCELLED)
	StatusDoesNotFit = int(C.SHARPI_E_DOES_NOT_FIT)
	StatusKVFull     = int(C.SHARPI_E_KV_FULL)
	StatusNotFound   = int(C.SHARPI_E_NOT_FOUND)
)

// Error is what the library answered.
type Error struct {
	Status     int    // one of SHARPI_E_*
	NativeCode int    // of the operating system or of a device, or 0
	Name       string // of the status, such as "SHARPI_E_KV_FULL"
	Text       string // what was wrong, in a sentence
}

func (e *Error) Error() string { return e.Name + ": " + e.Text }

func newError() C.sharpi_error {
	return C.sharpi_error{struct_size: C.sizeof_sharpi_error}
}

func check(status C.sharpi_status, err *C.sharpi_error) error {
	if status == C.SHARPI_OK {
		return nil
	}
	return &Error{
		Status: int(status), NativeCode: int(err.native_code),
		Name: C.GoString(C.sharpi_status_name(status)), Text: C.GoString(&err.text[0]),
	}
}

// A copy of the text in C's memory, which has an address also where there is no text.
func cBytes(text string) *C.char {
	p := C.malloc(C.size_t(len(text) + 1))
	copy(unsafe.Slice((*byte)(p), len(text)), text)
	return (*C.char)(p)
}

// KV says how keys and values are stored.
type KV uint32

// What KV rows are stored as; KVAuto is the architecture's default, narrowed only if needed.
const (
	KVAuto = KV(C.SHARPI_KV_AUTO)
	KVF32  = KV(C.SHARPI_KV_F32)
	KVBF16 = KV(C.SHARPI_KV_BF16)
	KVQ8   = KV(C.SHARPI_KV_Q8_0)
	KVQ4   = KV(C.SHARPI_KV_Q4)
)

// Options say how a model is placed, and what its sessions may hold. Zero leaves a value to the
// library.
type Options struct {
	ContextSize   uint32 // tokens that a session holds at most
	KV            KV     // how sessions store keys and values
	OnCPU         bool   // no layer on a GPU
	Threads       uint32 // of the CPU tier
	Sessions      uint32 // sessions whose memory is planned
	Exact         bool   // activations stay in f32
	Deterministic bool   // the same bits for any chunking and number of threads
	MapFile       bool   // weights of the CPU stay in the mapped file and are not copied
}

// Model is a loaded model.
type Model struct{ c *C.sharpi_model }

// Load plans a file and loads its weights. It fails with StatusDoesNotFit, before anything is
// read, where memory is short, and says by how much. No options are the library's defaults.
func Load(path string, options *Options) (*Model, error) {
	if options == nil {
		options = &Options{}
	}
	err := newError()
	var wanted C.sharpi_context_params
	C.sharpi_context_params_init(&wanted, C.sizeof_sharpi_context_params)
	if options.Threads != 0 {
		wanted.n_threads = C.uint32_t(options.Threads)
	}
	var context *C.sharpi_context
	if e := check(C.sharpi_context_create(&wanted, &context, &err), &err); e != nil {
		return nil, e
	}
	// The model keeps the plan and the context alive; our references go here.
	defer C.sharpi_context_destroy(context)
	plan, e := makePlan(context, path, options)
	if e != nil {
		return nil, e
	}
	defer C.sharpi_plan_destroy(plan)
	m := &Model{}
	if e := check(C.sharpi_model_load(plan, nil, nil, &m.c, &err), &err); e != nil {
		return nil, e
	}
	runtime.SetFinalizer(m, (*Model).Close)
	return m, nil
}

func makePlan(context *C.sharpi_context, path string, o *Options) (*C.sharpi_plan, error) {
	// Memory of Go that C reads must not point to memory of Go: the inner struct is C's.
	session := (*C.sharpi_session_params)(C.malloc(C.sizeof_sharpi_session_params))
	defer C.free(unsafe.Pointer(session))
	C.sharpi_session_params_init(session, C.sizeof_sharpi_session_params)
	if o.ContextSize != 0 {
		session.n_ctx = C.uint32_t(o.ContextSize)
	}
	session.k_dtype = C.sharpi_kv_dtype(o.KV)
	session.v_dtype = C.sharpi_kv_dtype(o.KV)
	var wanted C.sharpi_plan_params
	C.sharpi_plan_params_init(&wanted, C.sizeof_sharpi_plan_params)
	if o.Sessions != 0 {
		wanted.n_sessions = C.uint32_t(o.Sessions)
	}
	if o.OnCPU {
		wanted.n_gpu_layers = 0
	}
	if o.Exact {
		wanted.arithmetic = C.SHARPI_ARITHMETIC_EXACT
	}
	if o.Deterministic {
		wanted.deterministic = 1
	}
	if o.MapFile {
		wanted.load_mode = C.SHARPI_LOAD_MAP
	}
	wanted.session = session
	file := C.CString(path)
	defer C.free(unsafe.Pointer(file))
	var plan *C.sharpi_plan
	err := newError()
	return plan, check(C.sharpi_plan_create(context, file, &wanted, &plan, &err), &err)
}

// Close gives the reference back; sessions keep theirs. The model is of no use then.
func (m *Model) Close() {
	C.sharpi_model_destroy(m.c)
	m.c = nil
	runtime.SetFinalizer(m, nil)
}

type call func(out *C.int32_t, room C.uint32_t, n *C.uint32_t, err *C.sharpi_error) C.sharpi_status

// tokens asks for token ids, and once more with the room that is said to be needed.
func tokens(room int, ask call) ([]int32, error) {
	for {
		out := make([]int32, room)
		var n C.uint32_t
		err := newError()
		status := ask((*C.int32_t)(&out[0]), C.uint32_t(room), &n, &err)
		if status == C.SHARPI_E_BUFFER_TOO_SMALL && int(n) > room {
			room = int(n)
			continue
		}
		if e := check(status, &err); e != nil {
			return nil, e
		}
		return out[:n], nil
	}
}

// Tokenize gives the text as token ids, with what the vocabulary puts around a text. What looks
// like a control token is text.
func (m *Model) Tokenize(text string) ([]int32, error) {
	utf8 := cBytes(text)
	defer C.free(unsafe.Pointer(utf8))
	defer runtime.KeepAlive(m)
	ask := func(out *C.int32_t, room C.uint32_t, n *C.uint32_t, err *C.sharpi_error) C.sharpi_status {
		flags := C.uint32_t(C.SHARPI_TOKENIZE_ADD_SPECIAL)
		return C.sharpi_tokenize(m.c, utf8, C.size_t(len(text)), flags, out, room, n, err)
	}
	return tokens(len(text)+8, ask)
}

// Message is one message of a conversation.
type Message struct {
	Role    string // "system", "user", "assistant"
	Content string
}

// ChatTokens gives a conversation in the model's chat format, ready for its answer. No text can
// make a control token.
func (m *Model) ChatTokens(messages ...Message) ([]int32, error) {
	defer runtime.KeepAlive(m)
	size := C.size_t(C.sizeof_sharpi_message)
	rows := (*C.sharpi_message)(C.calloc(C.size_t(len(messages)+1), size))
	defer C.free(unsafe.Pointer(rows))
	for i, row := range unsafe.Slice(rows, len(messages)) {
		row.role, row.content = C.CString(messages[i].Role), cBytes(messages[i].Content)
		row.content_len = C.size_t(len(messages[i].Content))
		defer C.free(unsafe.Pointer(row.role))
		defer C.free(unsafe.Pointer(row.content))
		unsafe.Slice(rows, len(messages))[i] = row
	}
	var chat C.sharpi_chat_params
	C.sharpi_chat_params_init(&chat, C.sizeof_sharpi_chat_params)
	chat.messages, chat.n_messages = rows, C.uint32_t(len(messages))
	ask := func(out *C.int32_t, room C.uint32_t, n *C.uint32_t, err *C.sharpi_error) C.sharpi_status {
		return C.sharpi_chat_tokenize(m.c, &chat, out, room, n, err)
	}
	return tokens(256, ask)
}

// IsEnd says whether this token ends a generation.
func (m *Model) IsEnd(token int32) bool {
	defer runtime.KeepAlive(m)
	return C.sharpi_token_is_end(m.c, C.int32_t(token)) != 0
}

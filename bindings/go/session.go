// SPDX-License-Identifier: MIT

package sharpi

/*
#include <sharpi.h>
*/
import "C"

import "runtime"

// Sampler says how the next token is drawn; meaning and order are those of sharpi_sampler_params.
type Sampler struct {
	Temperature   float32 // 0 = greedy
	TopK          uint32  // 0 = off
	TopP          float32 // 1 = off
	MinP          float32 // 0 = off
	RepeatPenalty float32 // 1 = off
	Seed          uint64  // SeedRandom: another one for every session
}

// SeedRandom is a seed that differs from session to session.
const SeedRandom = uint64(C.SHARPI_SEED_RANDOM)

// DefaultSampler is the library's.
func DefaultSampler() Sampler {
	var p C.sharpi_sampler_params
	C.sharpi_sampler_params_init(&p, C.sizeof_sharpi_sampler_params)
	return Sampler{float32(p.temperature), uint32(p.top_k), float32(p.top_p), float32(p.min_p),
		float32(p.repeat_penalty), uint64(p.seed)}
}

// Greedy takes the most likely token, always.
func Greedy() Sampler {
	s := DefaultSampler()
	s.Temperature = 0
	return s
}

// Session is the tokens that were read, their KV rows, and what draws the next one.
type Session struct {
	c     *C.sharpi_session
	model *Model
}

// NewSession makes a session with what was planned for each.
func (m *Model) NewSession() (*Session, error) {
	defer runtime.KeepAlive(m)
	s := &Session{model: m}
	err := newError()
	if e := check(C.sharpi_session_create(m.c, nil, &s.c, &err), &err); e != nil {
		return nil, e
	}
	runtime.SetFinalizer(s, (*Session).Close)
	return s, nil
}

// Close gives the session's memory back, when the call that it is in has ended.
func (s *Session) Close() {
	C.sharpi_session_destroy(s.c)
	s.c = nil
	runtime.SetFinalizer(s, nil)
}

// Prefill reads tokens behind those that are there.
func (s *Session) Prefill(tokens []int32) error {
	defer runtime.KeepAlive(s)
	err := newError()
	var first *C.int32_t
	if len(tokens) > 0 {
		first = (*C.int32_t)(&tokens[0])
	}
	return check(C.sharpi_session_prefill(s.c, first, C.uint32_t(len(tokens)), nil, nil, &err), &err)
}

// SetSampler says how tokens are drawn from now on.
func (s *Session) SetSampler(sampler Sampler) error {
	defer runtime.KeepAlive(s)
	var p C.sharpi_sampler_params
	C.sharpi_sampler_params_init(&p, C.sizeof_sharpi_sampler_params)
	p.temperature, p.top_k = C.float(sampler.Temperature), C.uint32_t(sampler.TopK)
	p.top_p, p.min_p = C.float(sampler.TopP), C.float(sampler.MinP)
	p.repeat_penalty, p.seed = C.float(sampler.RepeatPenalty), C.uint64_t(sampler.Seed)
	err := newError()
	return check(C.sharpi_session_set_sampler(s.c, &p, &err), &err)
}

// Step draws a token, and reads it unless it ends the generation.
func (s *Session) Step() (int32, error) {
	defer runtime.KeepAlive(s)
	var token C.int32_t
	var n C.uint32_t
	err := newError()
	e := check(C.sharpi_session_step(s.c, nil, &token, 1, &n, &err), &err)
	return int32(token), e
}

// Generate gives what follows, of at most so many tokens, as text in whole characters. It ends
// where the model does, or where the function says false.
func (s *Session) Generate(nTokens int, piece func(text string) bool) error {
	defer runtime.KeepAlive(s)
	var stream C.sharpi_text_stream
	err := newError()
	for i := 0; i < nTokens; i++ {
		token, e := s.Step()
		if e != nil {
			return e
		}
		if s.model.IsEnd(token) {
			break
		}
		text, e := s.textOf(&stream, token)
		if e != nil {
			return e
		}
		if text != "" && !piece(text) {
			return nil
		}
	}
	var rest [16]C.char
	var n C.size_t
	if e := check(C.sharpi_text_stream_finish(&stream, &rest[0], 16, &n, &err), &err); e != nil {
		return e
	}
	if n > 0 {
		piece(C.GoStringN(&rest[0], C.int(n)))
	}
	return nil
}

func (s *Session) textOf(stream *C.sharpi_text_stream, token int32) (string, error) {
	room, one := 64, C.int32_t(token)
	for {
		out := make([]C.char, room)
		var n C.size_t
		err := newError()
		status := C.sharpi_detokenize_stream(s.model.c, stream, &one, 1, 0, &out[0],
			C.size_t(room), &n, &err)
		if status == C.SHARPI_E_BUFFER_TOO_SMALL && int(n) > room {
			room = int(n)
			continue
		}
		if e := check(status, &err); e != nil {
			return "", e
		}
		return C.GoStringN(&out[0], C.int(n)), nil
	}
}

// Truncate goes back to the first n tokens. What is reachable depends on the model and its plan.
func (s *Session) Truncate(nTokens uint32) error {
	defer runtime.KeepAlive(s)
	err := newError()
	return check(C.sharpi_session_truncate(s.c, C.uint32_t(nTokens), &err), &err)
}

// Fork makes a second session with the same tokens, which shares the rows that both have.
func (s *Session) Fork() (*Session, error) {
	defer runtime.KeepAlive(s)
	fork := &Session{model: s.model}
	err := newError()
	if e := check(C.sharpi_session_fork(s.c, &fork.c, &err), &err); e != nil {
		return nil, e
	}
	runtime.SetFinalizer(fork, (*Session).Close)
	return fork, nil
}

// Cancel ends the call that the session is in, or the next one, with StatusCancelled. For any
// goroutine.
func (s *Session) Cancel() {
	defer runtime.KeepAlive(s)
	C.sharpi_session_cancel(s.c)
}

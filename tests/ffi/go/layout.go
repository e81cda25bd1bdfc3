// SPDX-License-Identifier: MIT

// Prints how cgo lays out the structs of sharpi.h, in the form of header_facts.sh.
package main

/*
#cgo pkg-config: sharpi
#include <sharpi.h>
*/
import "C"

import (
	"fmt"
	"reflect"
	"strings"
)

var kinds = map[reflect.Kind]string{
	reflect.Uint32: "u32", reflect.Int32: "i32", reflect.Uint64: "u64", reflect.Float32: "f32",
	reflect.Float64: "f64", reflect.Ptr: "p", reflect.UnsafePointer: "p", reflect.Array: "a",
}

func main() {
	for _, value := range []interface{}{
		C.sharpi_batch_read{},
		C.sharpi_batch_step{},
		C.sharpi_chat_params{},
		C.sharpi_chat_parts{},
		C.sharpi_compact_params{},
		C.sharpi_compact_report{},
		C.sharpi_context_params{},
		C.sharpi_device{},
		C.sharpi_device_request{},
		C.sharpi_draft_stats{},
		C.sharpi_error{},
		C.sharpi_expert_stats{},
		C.sharpi_grammar_params{},
		C.sharpi_layer_info{},
		C.sharpi_logprob{},
		C.sharpi_memory_row{},
		C.sharpi_message{},
		C.sharpi_model_summary{},
		C.sharpi_parse_params{},
		C.sharpi_plan_device{},
		C.sharpi_plan_params{},
		C.sharpi_plan_summary{},
		C.sharpi_prefill_params{},
		C.sharpi_recall_params{},
		C.sharpi_recall_report{},
		C.sharpi_sample_params{},
		C.sharpi_sampler_params{},
		C.sharpi_segment_info{},
		C.sharpi_session_params{},
		C.sharpi_session_summary{},
		C.sharpi_stop_stream{},
		C.sharpi_text_stream{},
		C.sharpi_adapter_summary{},
		C.sharpi_adapter_use{},
		C.sharpi_group_params{},
		C.sharpi_group_summary{},
		C.sharpi_embedder_params{},
		C.sharpi_embedder_summary{},
		C.sharpi_text_tokens{},
		C.sharpi_embed_params{},
		C.sharpi_rerank_params{},
	} {
		t := reflect.TypeOf(value)
		name := strings.TrimPrefix(t.Name(), "_Ctype_struct_")
		fmt.Println("struct", name, t.Size())
		for i := 0; i < t.NumField(); i++ {
			if f := t.Field(i); f.Name != "_" { // padding
				fmt.Printf("field %s.%s %d %d %s\n", name, f.Name, f.Offset, f.Type.Size(),
					kinds[f.Type.Kind()])
			}
		}
	}
}

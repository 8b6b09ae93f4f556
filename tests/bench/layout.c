// Prints where the fields of c.h's structs are, as JSON: bench/comparison/library.py must agree.
#include <stddef.h>
#include <stdio.h>

#include "heddle/c.h"

#define FIELD(type, name) printf(", \"%s\": %zu", #name, offsetof(type, name))
#define BEGIN(type) printf("\"%s\": {\"sizeof\": %zu", #type, sizeof(type))
#define END(rest) printf("}" rest "\n")

int main(void) {
  puts("{");
  BEGIN(heddle_tensor);
  FIELD(heddle_tensor, data);
  FIELD(heddle_tensor, dtype);
  FIELD(heddle_tensor, device_kind);
  FIELD(heddle_tensor, device_index);
  FIELD(heddle_tensor, rank);
  FIELD(heddle_tensor, shape);
  FIELD(heddle_tensor, strides);
  END(",");
  BEGIN(heddle_param);
  FIELD(heddle_param, name);
  FIELD(heddle_param, type);
  FIELD(heddle_param, integer);
  FIELD(heddle_param, real);
  END(",");
  BEGIN(heddle_capture);
  FIELD(heddle_capture, name);
  FIELD(heddle_capture, tensor);
  END(",");
  BEGIN(heddle_bindings);
  FIELD(heddle_bindings, struct_size);
  FIELD(heddle_bindings, params);
  FIELD(heddle_bindings, param_count);
  FIELD(heddle_bindings, captures);
  FIELD(heddle_bindings, capture_count);
  END(",");
  BEGIN(heddle_attention_options);
  FIELD(heddle_attention_options, struct_size);
  FIELD(heddle_attention_options, score_mod);
  FIELD(heddle_attention_options, mask_mod);
  FIELD(heddle_attention_options, weight_mod);
  FIELD(heddle_attention_options, bindings);
  FIELD(heddle_attention_options, scale);
  FIELD(heddle_attention_options, sinks);
  FIELD(heddle_attention_options, q_lengths);
  FIELD(heddle_attention_options, kv_lengths);
  FIELD(heddle_attention_options, cu_seqlens_q);
  FIELD(heddle_attention_options, cu_seqlens_kv);
  FIELD(heddle_attention_options, q_start);
  FIELD(heddle_attention_options, q_descale);
  FIELD(heddle_attention_options, k_descale);
  FIELD(heddle_attention_options, v_descale);
  FIELD(heddle_attention_options, normalizer);
  FIELD(heddle_attention_options, backend);
  FIELD(heddle_attention_options, threads);
  FIELD(heddle_attention_options, reserved);
  FIELD(heddle_attention_options, stream);
  FIELD(heddle_attention_options, progress);
  FIELD(heddle_attention_options, progress_context);
  FIELD(heddle_attention_options, block_mask);
  FIELD(heddle_attention_options, page_table);
  FIELD(heddle_attention_options, max_q_len);
  FIELD(heddle_attention_options, max_kv_len);
  FIELD(heddle_attention_options, kv_start);
  FIELD(heddle_attention_options, clamp_reads);
  FIELD(heddle_attention_options, reserved_2);
  FIELD(heddle_attention_options, deterministic);
  FIELD(heddle_attention_options, reserved_3);
  END(",");
  BEGIN(heddle_attention_tensors);
  FIELD(heddle_attention_tensors, struct_size);
  FIELD(heddle_attention_tensors, q);
  FIELD(heddle_attention_tensors, k);
  FIELD(heddle_attention_tensors, v);
  FIELD(heddle_attention_tensors, o);
  FIELD(heddle_attention_tensors, lse);
  FIELD(heddle_attention_tensors, max_scores);
  END(",");
  BEGIN(heddle_run_options);
  FIELD(heddle_run_options, struct_size);
  FIELD(heddle_run_options, workspace);
  FIELD(heddle_run_options, bindings);
  FIELD(heddle_run_options, stream);
  END(",");
  BEGIN(heddle_sequence);
  FIELD(heddle_sequence, q_begin);
  FIELD(heddle_sequence, q_len);
  FIELD(heddle_sequence, kv_begin);
  FIELD(heddle_sequence, kv_len);
  FIELD(heddle_sequence, q_start);
  FIELD(heddle_sequence, kv_start);
  END(",");
  BEGIN(heddle_block_mask_options);
  FIELD(heddle_block_mask_options, struct_size);
  FIELD(heddle_block_mask_options, heads);
  FIELD(heddle_block_mask_options, sequences);
  FIELD(heddle_block_mask_options, sequence_count);
  FIELD(heddle_block_mask_options, q_block);
  FIELD(heddle_block_mask_options, kv_block);
  FIELD(heddle_block_mask_options, mask_mod);
  FIELD(heddle_block_mask_options, bindings);
  FIELD(heddle_block_mask_options, kv_num_blocks);
  FIELD(heddle_block_mask_options, kv_indices);
  FIELD(heddle_block_mask_options, full_kv_num_blocks);
  FIELD(heddle_block_mask_options, full_kv_indices);
  FIELD(heddle_block_mask_options, threads);
  FIELD(heddle_block_mask_options, f64_inputs);
  FIELD(heddle_block_mask_options, sequence_size);
  FIELD(heddle_block_mask_options, clamp_reads);
  FIELD(heddle_block_mask_options, reserved);
  END("");
  puts("}");
  return 0;
}

// torch's types and functions that calls from C++ need.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>

#include "arguments.h"
#include "tensors.h"

namespace heddle::python {

constexpr int kCpu = 1, kCuda = 2;  // of DLPack

struct TorchNames {
  std::array<nb::object, 2> types;  // torch.Tensor, torch.nn.Parameter
  nb::object empty_like;
  nb::object empty_lse;         // of a query: a new tensor for its lse
  nb::object empty_statistics;  // of a query: one for its lse and for lse_rest, [2, ...]
  nb::object empty_contiguous;  // of a tensor: a new one of its shape and type
  nb::object stream;            // of a GPU's index: torch's current stream; None while a graph captures it
  nb::object threads;           // the CPU threads of a call, 0 for all cores
  std::array<nb::object, 2>
      strided{};  // a new tensor of a shape, strides and a dtype, on the CPU and on the current GPU

  /// torch.empty_like(query), and its array: by `strided` where it can, which takes half the time. False if there is
  /// none.
  bool make_like(nb::handle query, const ReadOnly& given, nb::object& made, Array& array) const;

  /// Takes a tensor that is none of a subclass. False for others.
  bool take(nb::handle object, ReadOnly& array) const;
  /// Sets the stream of a GPU's call, the threads of a CPU's. False while a graph captures the stream.
  bool set_place(const ReadOnly& query, Arguments& arguments) const;
  bool set_stream(const ReadOnly& query, std::uintptr_t& number) const;
};

}  // namespace heddle::python

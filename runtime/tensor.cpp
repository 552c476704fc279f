#include "runtime/tensor.h"

namespace maxim {

const char* name_of(DType type) {
  switch (type) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::u32:
      return "u32";
    case DType::u16:
      return "u16";
  }
  return "?";
}

}  // namespace maxim

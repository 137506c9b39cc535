// What attention.h and its callers agree on.
#pragma once

namespace specllm {

constexpr int CELLS = 32;           // in a block
constexpr int CHUNK = 256;          // cells that are merged as one
constexpr int MAX_HEAD = 256;       // the largest head size; all are multiples of 16
constexpr int ATTENTION_ROWS = 96;  // rows in a task, at most
constexpr int PART_HEADER = 8;      // floats before the weighted sum in a part

}  // namespace specllm

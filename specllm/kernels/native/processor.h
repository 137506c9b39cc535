// Which instruction sets this processor and its system run.
#pragma once
#include "formats.h"

namespace specllm {

constexpr int MAX_SETS = 4;

// The sets that run here, fastest first; returns how many.
int instruction_sets(const InstructionSet ** out);

// The set called `name`, or the fastest where name is null or empty; null where there is none such here.
const InstructionSet * find_instruction_set(const char * name);

}  // namespace specllm

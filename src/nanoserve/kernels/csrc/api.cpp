// The C interface: a program of operators is run in order by a team of OpenMP threads.
#include <omp.h>

#include <algorithm>
#include <chrono>

#include "ops.h"
#include "panels.h"

namespace {

template <class Args, void (*run)(const Args&, Team&)>
void run_op(const void* args, Team& team) {
  run(*static_cast<const Args*>(args), team);
}

struct OpKind {
  void (*run)(const void*, Team&);
  int64_t args_bytes;
};

template <class Args, void (*run)(const Args&, Team&)>
constexpr OpKind kind() {
  return {run_op<Args, run>, sizeof(Args)};
}

// In the order of `kernels/op_args.py`.
constexpr OpKind KINDS[] = {
    kind<RmsNormArgs, rms_norm>(),
    kind<SiluMulArgs, silu_mul>(),
    kind<PrepareHeadsArgs, prepare_heads>(),
    kind<PagedAttentionArgs, paged_attention>(),
    kind<GatherRowsArgs, gather_rows>(),
    kind<AddArgs, add>(),
    kind<WidenArgs, widen>(),
    kind<RowMaxArgs, row_max>(),
    kind<PackedLinearArgs, packed_linear>(),
    kind<EmbeddingArgs, embedding>(),
    kind<FitInt4Args, fit_int4>(),
};
constexpr int64_t NUM_KINDS = sizeof KINDS / sizeof KINDS[0];

}  // namespace

extern "C" {

struct Op {
  int64_t kind;
  const void* args;
};

void nanoserve_run(const Op* program, int64_t num_ops, int32_t num_threads) {
  TeamState state(std::max(num_threads, 1));
#pragma omp parallel num_threads(num_threads) if (num_threads > 1)
  {
    Team team(state, omp_get_thread_num(), omp_get_num_threads());
    for (int64_t i = 0; i < num_ops; i = std::max(i + 1, team.current_op())) {
      team.begin(i);
      KINDS[program[i].kind].run(program[i].args, team);
    }
  }
}

// Adds to nanoseconds[i] what operator i takes the calling thread, its waits with it.
void nanoserve_run_timed(const Op* program, int64_t num_ops, int32_t num_threads,
                         int64_t* nanoseconds) {
  using Clock = std::chrono::steady_clock;
  TeamState state(std::max(num_threads, 1));
#pragma omp parallel num_threads(num_threads)
  {
    Team team(state, omp_get_thread_num(), omp_get_num_threads());
    auto before = Clock::now();
    for (int64_t i = 0; i < num_ops; i++) {
      team.begin(i);
      KINDS[program[i].kind].run(program[i].args, team);
      auto after = Clock::now();
      if (team.thread() == 0) {
        nanoseconds[i] += std::chrono::nanoseconds(after - before).count();
      }
      before = after;
    }
  }
}

void nanoserve_run_one(int64_t kind, const void* args, int32_t num_threads) {
  Op op{kind, args};
  nanoserve_run(&op, 1, num_threads);
}

int64_t nanoserve_args_bytes(int64_t kind) {
  return kind < 0 || kind >= NUM_KINDS ? -1 : KINDS[kind].args_bytes;
}

int32_t nanoserve_vector_bits() { return LANES * 32; }

int32_t nanoserve_panel_outputs() { return PANEL_OUTPUTS; }

int32_t nanoserve_has_bf16_products() {
#ifdef __AVX512BF16__
  return 1;
#else
  return 0;
#endif
}

}  // extern "C"

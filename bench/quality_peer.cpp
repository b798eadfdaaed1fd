// Logits of llama.cpp at every position of a window: what `bench.quality` compares with ours.
//
// Usage: quality_peer MODEL.gguf WINDOW VOCABULARY THREADS. Reads windows of int32 token ids
// from stdin and writes float32 [WINDOW, VOCABULARY] for each to stdout, until stdin ends.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  int window = std::atoi(argv[2]), vocabulary = std::atoi(argv[3]);
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = window;
  params.n_threads = params.n_threads_batch = std::atoi(argv[4]);
  llama_context* context = model ? llama_init_from_model(model, params) : nullptr;
  if (!context) return 1;
  llama_batch batch = llama_batch_init(window, 0, 1);
  std::vector<llama_token> ids(window);
  while (std::fread(ids.data(), sizeof(llama_token), window, stdin) == size_t(window)) {
    llama_memory_clear(llama_get_memory(context), true);
    batch.n_tokens = window;
    for (int i = 0; i < window; i++) {
      batch.token[i] = ids[i];
      batch.pos[i] = i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = true;
    }
    if (llama_decode(context, batch)) return 1;
    size_t count = size_t(window) * vocabulary;
    if (std::fwrite(llama_get_logits(context), sizeof(float), count, stdout) != count) return 1;
    std::fflush(stdout);
  }
}

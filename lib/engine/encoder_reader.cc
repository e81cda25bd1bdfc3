// SPDX-License-Identifier: MIT
#include <array>

#include "engine/text_reader.h"
#include "plan/encoder_plan.h"

namespace sharpi {
namespace {

class EncoderReader final : public TextReader {
 public:
  EncoderReader(std::shared_ptr<const Model> model, float* hidden)
      : model_(std::move(model)), hidden_(hidden) {}

  Status read(std::span<const Text> texts, const std::atomic<bool>& cancel,
              RowSink* sink) override {
    for (size_t first = 0; first < texts.size();) {
      const size_t n = fitting(texts.subspan(first));
      SHARPI_TRY(pass(texts.subspan(first, n), static_cast<uint32_t>(first), cancel, sink));
      first += n;
    }
    return Status::ok();
  }

 private:
  /// Texts of the next pass: at least one.
  size_t fitting(std::span<const Text> texts) const {
    const uint32_t most = model_->plan().model.n_chunk;
    size_t n = 0, rows = 0;
    while (n < texts.size() && n < kMaxTexts && rows + texts[n].tokens.size() <= most)
      rows += texts[n++].tokens.size();
    return n;
  }

  Status pass(std::span<const Text> texts, uint32_t first_text, const std::atomic<bool>& cancel,
              RowSink* sink) {
    const uint64_t width = model_->spec().n_embd;
    std::array<SequenceRows, kMaxTexts> rows;
    tokens_.clear();
    for (size_t i = 0; i < texts.size(); ++i) {
      rows[i].first_row = static_cast<uint32_t>(tokens_.size());
      rows[i].n_rows = static_cast<uint32_t>(texts[i].tokens.size());
      rows[i].n_first = texts[i].n_first;
      rows[i].hidden = hidden_ + rows[i].first_row * width;
      tokens_.insert(tokens_.end(), texts[i].tokens.begin(), texts[i].tokens.end());
    }
    Submission all;
    all.tokens = tokens_.data();
    all.n_rows = static_cast<uint32_t>(tokens_.size());
    all.sequences = {rows.data(), texts.size()};
    all.transient = true;
    all.cancel = &cancel;
    SHARPI_TRY(model_->run_texts(all));
    for (uint32_t i = 0; i < texts.size(); ++i)
      sink->take(first_text + i, i, 0, rows[i].n_rows, rows[i].hidden);
    return sink->end_pass(all.n_rows);
  }

  const std::shared_ptr<const Model> model_;
  float* const hidden_;
  std::vector<int32_t> tokens_;
};

}  // namespace

std::unique_ptr<TextReader> make_encoder_reader(std::shared_ptr<const Model> model, float* hidden) {
  return std::make_unique<EncoderReader>(std::move(model), hidden);
}

}  // namespace sharpi

// SPDX-License-Identifier: MIT
#include "scheduler.h"

#include <algorithm>
#include <chrono>
#include <new>

namespace server {
namespace {

double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

// How long a step waits for a mask: most are there when the step before ends. An answer whose mask
// takes longer misses steps, and the others go on without it.
constexpr std::chrono::microseconds kMaskPatience(1000);
// With nobody else to go on with.
constexpr std::chrono::microseconds kLongMaskPatience(20000);

constexpr const char* kMemoryIsShort = "memory is short";

int http_status_of(sharpi_status status) {
  return is_short_of_memory(status) ? 503 : 500;
}

// Rows that a session which ran out of them gets more of.
constexpr uint32_t kMoreSlots = 1024;
// A prompt waits for another one that is being read where they begin with so many more tokens
// together than any session holds yet.
constexpr uint32_t kWorthWaiting = 64;

// A chunk of a prompt, for what is said of it while it is read.
struct ChunkOf {
  Job& job;
  uint32_t begin;
};
int32_t note_progress(void* chunk, uint32_t, uint64_t done, uint64_t) {
  const auto& of = *static_cast<const ChunkOf*>(chunk);
  of.job.set_read(of.begin + static_cast<uint32_t>(done));
  return 0;
}

}  // namespace

Scheduler::Scheduler(const Engine& engine, const Settings& settings, Metrics& metrics)
    : engine_(engine),
      settings_(settings),
      metrics_(metrics),
      sessions_(engine, settings, metrics) {
  answers_.reserve(settings.slots);
  writing_.reserve(settings.slots);
  batch_.reserve(settings.slots);
  batch_sessions_.reserve(settings.slots);
  batch_tokens_.reserve(settings.slots);
  thread_ = std::thread([this] { loop(); });
}

Scheduler::~Scheduler() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::shared_ptr<Job> Scheduler::submit(Generation generation, std::function<bool()> gone) {
  auto job = std::make_shared<Job>(std::move(generation), std::move(gone));
  const std::lock_guard lock(mutex_);
  if (ending_) throw Busy("the server ends");
  if (queue_.size() + n_answers_ >= settings_.queue + settings_.slots) {
    metrics_.refused_full++;
    throw Busy("the queue is full: " + std::to_string(queue_.size()) + " requests wait");
  }
  if (queue_.size() + n_answers_ < settings_.slots) job->give_place();
  queue_.push_back(job);
  metrics_.waiting = queue_.size();
  changed_.notify_all();
  return job;
}

void Scheduler::run(const std::function<void(SessionCache&)>& work) {
  Errand errand{work};
  std::unique_lock lock(mutex_);
  if (ending_) throw Busy("the server ends");
  errands_.push_back(&errand);
  changed_.notify_all();
  errand_done_.wait(lock, [&] { return errand.done; });
  if (errand.failure != nullptr) std::rethrow_exception(errand.failure);
}

void Scheduler::loop() {
  while (wait_for_work()) {
    try {
      run_errands();
      drop_abandoned();
      admit();
      read_prompts();
      step();
      count();
    } catch (const std::bad_alloc&) {
      fail_all(kMemoryIsShort);  // what a step could not do for want of memory was left halfway
    }
  }
  run_errands();
  fail_all("the server ends");
  const std::lock_guard lock(mutex_);
  for (auto& job : queue_) job->fail(503, "the server ends");
}

void Scheduler::fail_all(std::string_view sentence) {
  for (auto& a : answers_) fail(*a, 503, sentence);
  erase_ended();
}

// False: the server ends.
bool Scheduler::wait_for_work() {
  std::unique_lock lock(mutex_);
  changed_.wait(
      lock, [&] { return ending_ || !errands_.empty() || !queue_.empty() || !answers_.empty(); });
  return !ending_;
}

void Scheduler::run_errands() {
  std::unique_lock lock(mutex_);
  while (!errands_.empty()) {
    Errand& errand = *errands_.front();
    errands_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      errand.work(sessions_);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    errand.failure = std::move(failure);  // nothing of it stays here
    errand.done = true;
    errand_done_.notify_all();
  }
}

// Requests are begun in the order in which they came, but for those that wait for a prompt that is
// being read.
void Scheduler::admit() {
  std::unique_lock lock(mutex_);
  for (size_t i = 0; i < queue_.size();) {  // others only put something behind it
    const std::shared_ptr<Job> job = queue_[i];
    lock.unlock();
    bool is_over = false;
    if (job->abandoned()) {
      job->finish(Finish::kCancelled, 0);
      metrics_.cancelled++;
      is_over = true;
    } else if (answers_.size() < settings_.slots) {
      job->give_place();
      is_over = !better_to_wait(job->generation()) && admit_one(job);
    }
    lock.lock();
    if (is_over) {
      queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  metrics_.waiting = queue_.size();
  n_answers_ = answers_.size();
}

// A prompt that is being read will soon hold much of this one.
bool Scheduler::better_to_wait(const Generation& asked) const {
  if (asked.prompt_logprobs) return false;
  const Tokens& prompt = asked.prompt;
  uint32_t coming = 0;
  for (const auto& a : answers_) {
    if (!a->reading() || a->job().generation().lora != asked.lora) continue;
    const uint32_t common = common_prefix(a->prompt(), prompt);
    if (common > a->conversation()->tokens.size()) coming = std::max(coming, common);
  }
  return coming > kWorthWaiting &&
         coming > sessions_.best_prefix(prompt, asked.lora) + kWorthWaiting;
}

// False: every session is busy.
bool Scheduler::admit_one(const std::shared_ptr<Job>& job) {
  Conversation* c = nullptr;
  try {
    const Generation& asked = job->generation();
    c = sessions_.acquire(asked.prompt_logprobs ? Tokens{asked.prompt.front()} : asked.prompt,
                          asked.lora);
    if (c == nullptr) return false;
    const auto held = static_cast<uint32_t>(c->tokens.size());
    answers_.push_back(std::make_unique<Answering>(engine_, job, c));
    c->reading = true;
    c->n_prompt = static_cast<uint32_t>(job->generation().prompt.size());
    metrics_.cached_tokens += held;
    job->begin(c->id, held);
  } catch (const LibraryError& e) {
    if (c != nullptr) sessions_.release(c);
    job->fail(e.status() == SHARPI_E_INVALID_ARGUMENT ? 400 : 503, e.what());
  } catch (const std::bad_alloc&) {
    if (!answers_.empty() && &answers_.back()->job() == job.get()) {
      fail(*answers_.back(), 503, kMemoryIsShort);
    } else {
      if (c != nullptr) sessions_.release(c);
      job->fail(503, kMemoryIsShort);
    }
  }
  return true;
}

void Scheduler::drop_abandoned() {
  for (auto& a : answers_) {
    if (a->job().abandoned()) end(*a, Finish::kCancelled);
  }
  erase_ended();
}

// One chunk of one prompt, in turns.
void Scheduler::read_prompts() {
  for (size_t i = 0; i < answers_.size(); ++i) {
    Answering& a = *answers_[(next_reader_ + i) % answers_.size()];
    if (!a.reading()) continue;
    next_reader_ = (next_reader_ + i + 1) % answers_.size();
    read_chunk(a);
    break;
  }
  erase_ended();
}

void Scheduler::read_chunk(Answering& a) {
  Conversation* c = a.conversation();
  const auto begin = static_cast<uint32_t>(c->tokens.size());
  const auto size = static_cast<uint32_t>(a.prompt().size());
  const bool alone = std::all_of(answers_.begin(), answers_.end(),
                                 [](const auto& other) { return other->reading(); });
  // A bounded session looks ahead to the end of its prompt, so it is read in one call.
  uint32_t n = size - begin;
  if (!engine_.bounded()) {
    n = std::min(n, alone ? settings_.chunk * engine_.chunks_of_call() : settings_.prefill_chunk);
  }
  const bool checkpoints = engine_.info().is_hybrid != 0 && engine_.plan().n_checkpoints != 0;
  bool at_boundary = false;
  if (checkpoints && !engine_.bounded()) {
    const uint32_t boundary = a.next_boundary(begin);
    at_boundary = boundary < size && begin + n >= boundary;
    if (at_boundary) n = boundary - begin;
  }
  const bool logprobs = a.job().generation().prompt_logprobs;
  if (logprobs) n = std::min(n, engine_.plan().max_logit_rows);
  sharpi_prefill_params p;
  sharpi_prefill_params_init(&p, sizeof p);
  const bool last = begin + n == size;
  p.flags = (last ? 0 : SHARPI_PREFILL_MORE) | (at_boundary ? SHARPI_PREFILL_CHECKPOINT : 0);
  p.n_logit_rows = logprobs ? n : last ? 1 : 0;
  ChunkOf chunk{a.job(), begin};
  p.progress = note_progress;
  p.user_data = &chunk;
  try {
    c->tokens.reserve(begin + n);
  } catch (const std::bad_alloc&) {
    return fail(a, 503, kMemoryIsShort);
  }
  uint32_t committed = 0;
  sharpi_error err = SHARPI_ERROR_INIT;
  a.job().enter(c->session.get());
  const sharpi_status status =
      sharpi_session_prefill(c->session.get(), a.prompt().data() + begin, n, &p, &committed, &err);
  a.job().leave();
  c->tokens.insert(c->tokens.end(), a.prompt().begin() + begin,
                   a.prompt().begin() + begin + committed);
  metrics_.prompt_tokens += committed;
  if (status == SHARPI_OK) {
    if (last) c->reading = false;
    if (logprobs) pass_on(a, begin, n);
  } else if (status == SHARPI_E_CANCELLED) {
    end(a, Finish::kCancelled);
  } else if (status == SHARPI_E_KV_FULL && err.native_code == SHARPI_KV_FULL_SLOTS) {
    try {
      sessions_.grow(c, std::min(engine_.n_ctx(), begin + n + kMoreSlots));
    } catch (const LibraryError& e) {
      fail(a, 503, e.what());
    }
  } else {
    fail(a, status == SHARPI_E_KV_FULL ? 400 : http_status_of(status), err.text);
  }
}

void Scheduler::pass_on(Answering& a, uint32_t begin, uint32_t n) {
  try {
    a.push_prompt(begin, n);
  } catch (const LibraryError& e) {
    fail(a, http_status_of(e.status()), e.what());
  } catch (const std::bad_alloc&) {
    fail(a, 503, kMemoryIsShort);
  }
}

// Every answer draws a token; those that go on read theirs together. Where one of them may have
// drafts, one call draws and reads for all, so that the drafts of all are in one pass.
void Scheduler::step() {
  writing_.clear();
  batch_.clear();
  Answering* waiting = nullptr;
  for (auto& a : answers_) {
    if (a->reading()) continue;
    if (a->is_prepared(waiting == nullptr ? kMaskPatience : std::chrono::microseconds(0))) {
      writing_.push_back(a.get());
    } else {
      waiting = a.get();
    }
  }
  if (writing_.empty() && waiting != nullptr && answers_.size() == 1) {
    waiting->is_prepared(kLongMaskPatience);
  }
  if (writing_.empty()) return;
  const Clock::time_point begun = Clock::now();
  const bool drafts =
      settings_.n_draft() != 0 &&
      std::any_of(writing_.begin(), writing_.end(), [](const auto* a) { return a->can_draft(); });
  for (Answering* a : writing_) {
    if ((drafts && !a->at_last_token()) || draws(*a, [a] { return a->draw(); })) {
      batch_.push_back(a);
    }
  }
  if (!batch_.empty()) drafts ? step_together() : decode();
  metrics_.steps++;
  metrics_.between_tokens.observe(seconds_since(begun));
  erase_ended();
}

// True: the answer goes on.
bool Scheduler::draws(Answering& a, const std::function<std::optional<Finish>()>& draw) {
  const uint32_t before = a.n_drawn();
  try {
    const std::optional<Finish> finish = draw();
    if (before == 0) metrics_.time_to_first_token.observe(seconds_since(a.job().asked_at));
    metrics_.generated_tokens += a.n_drawn() - before;
    if (finish) end(a, *finish);
  } catch (const LibraryError& e) {
    a.flush();
    fail(a, e.status() == SHARPI_E_DOES_NOT_FIT ? 400 : http_status_of(e.status()), e.what());
  } catch (const std::bad_alloc&) {
    fail(a, 503, kMemoryIsShort);
  } catch (const std::exception& e) {
    fail(a, 500, e.what());
  }
  return !a.ended;
}

void Scheduler::decode() {
  batch_sessions_.clear();
  batch_tokens_.clear();
  for (Answering* a : batch_) {
    batch_sessions_.push_back(a->conversation()->session.get());
    batch_tokens_.push_back(a->token());
  }
  const sharpi_status status = sharpi_decode_batch(batch_sessions_.data(), batch_tokens_.data(),
                                                   static_cast<uint32_t>(batch_.size()), nullptr);
  for (Answering* a : batch_) {
    if (status == SHARPI_OK) {
      was_read(*a);
    } else {
      decode_alone(*a);  // finds out which of them it was; no session has read its token yet
    }
  }
}

// Its session has read the token; where the server cannot note that, the two differ from here on.
void Scheduler::was_read(Answering& a) {
  try {
    a.was_read();
  } catch (const std::bad_alloc&) {
    fail(a, 503, kMemoryIsShort);
  }
}

// A call that reads, once more where the session had to get rows for it.
sharpi_status Scheduler::with_rows(Conversation* c, sharpi_error* err,
                                   const std::function<sharpi_status()>& read) {
  const sharpi_status status = read();
  if (status != SHARPI_E_KV_FULL || err->native_code != SHARPI_KV_FULL_SLOTS) return status;
  try {
    const auto rows = static_cast<uint32_t>(c->tokens.size());
    sessions_.grow(c, std::min(engine_.n_ctx(), rows + kMoreSlots));
  } catch (const LibraryError&) {
    return status;
  }
  return read();
}

void Scheduler::decode_alone(Answering& a) {
  Conversation* c = a.conversation();
  sharpi_error err = SHARPI_ERROR_INIT;
  const sharpi_status status =
      with_rows(c, &err, [&] { return sharpi_session_decode(c->session.get(), a.token(), &err); });
  if (status == SHARPI_OK) {
    was_read(a);
  } else if (status == SHARPI_E_KV_FULL) {
    a.flush();
    end(a, Finish::kLength);
  } else {
    fail(a, http_status_of(status), err.text);
  }
}

void Scheduler::step_together() {
  std::vector<Answering*> who;
  std::vector<sharpi_batch_step> steps;
  for (Answering* a : batch_) {
    try {
      steps.push_back(a->begin_step(settings_.n_draft()));
      who.push_back(a);
    } catch (const std::exception& e) {  // no memory for its mask
      fail(*a, dynamic_cast<const std::bad_alloc*>(&e) != nullptr ? 503 : 500, e.what());
    }
  }
  if (who.empty()) return;
  std::vector<sharpi_draft_stats> before;
  for (const sharpi_batch_step& s : steps) before.push_back(draft_stats(s.session));
  sharpi_step_batch(steps.data(), sizeof steps[0], static_cast<uint32_t>(steps.size()), nullptr);
  for (size_t i = 0; i < who.size(); ++i) {
    Answering& a = *who[i];
    // Refused for one, it has failed for all, and each finds out alone whether it was the one.
    if (steps[i].n_tokens == 0) step_alone(a, &steps[i]);
    if (steps[i].n_tokens == 0) continue;
    const sharpi_draft_stats after = draft_stats(steps[i].session);
    metrics_.drafted_tokens += after.n_drafted - before[i].n_drafted;
    metrics_.accepted_tokens += after.n_accepted - before[i].n_accepted;
    draws(a, [&] { return a.take_step(steps[i].n_tokens); });
  }
}

// Where it makes no step, the answer has ended.
void Scheduler::step_alone(Answering& a, sharpi_batch_step* step) {
  sharpi_error err = SHARPI_ERROR_INIT;
  const sharpi_status status = with_rows(a.conversation(), &err, [&] {
    return sharpi_session_step(step->session, step->params, step->out_tokens, step->cap,
                               &step->n_tokens, &err);
  });
  if (status == SHARPI_OK) return;
  step->n_tokens = 0;
  if (status == SHARPI_E_KV_FULL) {  // there is no room to read a token, but one to be said
    draws(a, [&] {
      const std::optional<Finish> finish = a.draw();
      if (!finish) a.flush();
      return finish.value_or(Finish::kLength);
    });
  } else if (status == SHARPI_E_CANCELLED) {
    end(a, Finish::kCancelled);
  } else {
    a.flush();
    fail(a, http_status_of(status), err.text);
  }
}

void Scheduler::end(Answering& a, Finish finish) {
  if (a.ended) return;
  a.ended = true;
  if (finish == Finish::kCancelled) metrics_.cancelled++;
  sessions_.release(a.conversation());
  a.job().finish(finish, a.n_drawn(), a.stop());
}

void Scheduler::fail(Answering& a, int http_status, std::string_view sentence) {
  if (a.ended) return;
  a.ended = true;
  sessions_.drop(a.conversation());
  a.job().fail(http_status, sentence);
}

void Scheduler::erase_ended() {
  std::erase_if(answers_, [](const auto& a) { return a->ended; });
  n_answers_ = answers_.size();
}

void Scheduler::count() {
  uint64_t reading = 0;
  for (const auto& a : answers_) reading += a->reading() ? 1 : 0;
  metrics_.reading = reading;
  metrics_.writing = answers_.size() - reading;
}

}  // namespace server

// Choosing a token of one row of logits, and its logprobs: a few passes over the vocabulary, none of which
// sorts it.
//
// Scores (logits after bias, penalties and masks) and weights (probabilities over that of the most likely
// token) are float32 and fill whole blocks, with -inf and 0 at the end. A filter keeps what lies above a cut
// and zeroes the rest in place; a cut is found by bisecting the bits of floats. Sums are float32 in a block
// and double over blocks, in order, so they are a function of the row alone.
#include "ops/cuts.h"
#include "ops/ops_isa.h"

namespace ramet {
namespace RAMET_ISA {

struct Work {
  int64_t num_blocks;
  double* sums;            // [num_blocks] of weights
  Blocks scores, weights;  // the lists of the largest ones are filled up with -inf to whole blocks
  float* few;              // [kFewLogits]
  uint32_t *may, *listed;  // bits of n

  Work(uint8_t* memory, int64_t vocab_size) {
    const int64_t n = whole_blocks(vocab_size);
    num_blocks = n / kScanBlock;
    const int64_t num_largest = whole_blocks(num_blocks);
    sums = reinterpret_cast<double*>(memory);
    auto* floats = reinterpret_cast<float*>(sums + (num_blocks + 7) / 8 * 8);
    scores = {floats + 2 * num_largest, floats, n};
    weights = {scores.x + n, floats + num_largest, n};
    few = weights.x + n;
    may = reinterpret_cast<uint32_t*>(few + kFewLogits);
    listed = may + n / 32;
    for (int64_t b = num_blocks; b < num_largest; ++b) scores.largest[b] = -kInfinity;
  }
};

// --- scores ---

static void find_largest(const Blocks& scores) {
  for (int64_t start = 0; start < scores.n; start += kScanBlock) {
    f32x16 most = set(-kInfinity);
    for (int64_t i = start; i < start + kScanBlock; i += 16) most = max(most, load(scores.x + i));
    scores.largest[start / kScanBlock] = reduce_max(most);
  }
}

static float largest_of(const Work& w) {
  f32x16 most = set(-kInfinity);
  for (int64_t b = 0; b < w.num_blocks; b += 16) most = max(most, load(w.scores.largest + b));
  return reduce_max(most);
}

// Copies the logits whose bit is set (all, where `may` is null), -inf for the others. Gives false where one
// of them all, set or not, is NaN or infinite.
static bool copy_scores(const float* logits, int64_t vocab_size, const uint32_t* may, const Blocks& scores) {
  const f32x16 zero = set(0.0f), out = set(-kInfinity);
  bool is_finite = true;
  for (int64_t start = 0; start < scores.n; start += kScanBlock) {
    f32x16 zeros = zero, most = out;  // zeros, or NaN
    for (int64_t i = start; i < start + kScanBlock; i += 16) {
      f32x16 x = out;
      if (i + 16 <= vocab_size) {
        x = load(logits + i);
        zeros = fma(x, zero, zeros);
      } else if (i < vocab_size) {
        zeros = fma(load_some(logits + i, vocab_size - i), zero, zeros);
        x = where_bits((1u << (vocab_size - i)) - 1, load_some(logits + i, vocab_size - i), out);
      }
      if (may != nullptr) x = where_bits(may[i / 32] >> (i % 32), x, out);
      most = max(most, x);
      store(scores.x + i, x);
    }
    is_finite &= reduce_add(zeros) == 0.0f;
    scores.largest[start / kScanBlock] = reduce_max(most);
  }
  return is_finite;
}

// The same where only the logits whose bit is set are there: no others are looked at.
static bool copy_some_scores(const float* logits, const uint32_t* may, const Blocks& scores) {
  const f32x16 out = set(-kInfinity);
  bool is_finite = true;
  for (int64_t start = 0; start < scores.n; start += kScanBlock) {
    float most = -kInfinity;
    for (int64_t i = start; i < start + kScanBlock; i += 16) store(scores.x + i, out);
    for (int64_t word = start / 32; word < (start + kScanBlock) / 32; ++word) {
      for (uint32_t left = may[word]; left != 0; left &= left - 1) {
        const int64_t i = word * 32 + __builtin_ctz(left);
        const float x = scores.x[i] = logits[i];
        is_finite &= __builtin_fabsf(x) <= kLargestFloat;
        if (x > most) most = x;
      }
    }
    scores.largest[start / kScanBlock] = most;
  }
  return is_finite;
}

// Of all, or of those whose bit is set.
static int64_t count_not_finite(const float* logits, int64_t vocab_size, const uint32_t* only) {
  int64_t count = 0;
  for (int64_t start = 0; start < vocab_size; start += 32) {
    const auto rest = static_cast<int>(vocab_size - start < 32 ? vocab_size - start : 32);
    const uint32_t all = rest < 32 ? (1u << rest) - 1 : ~0u;
    for (uint32_t left = only == nullptr ? all : only[start / 32] & all; left != 0; left &= left - 1)
      count += !(__builtin_fabsf(logits[start + __builtin_ctz(left)]) <= kLargestFloat);
  }
  return count;
}

// The first id of the row's lists that is not of the vocabulary, or null.
static const int32_t* find_unknown_id(const SamplingRows& s, int64_t row, int64_t vocab_size) {
  const Ragged* const lists[] = {&s.bias, &s.allowed, &s.history, &s.banned};
  for (const Ragged* list : lists) {
    for (const int32_t* id = list->begin(row); id != list->end(row); ++id) {
      if (*id < 0 || *id >= vocab_size) return id;
    }
  }
  return nullptr;
}

// Leaves the bits that are set in `given` as well, which may be shorter.
static void keep_bits(uint32_t* bits, int64_t num_words, const uint32_t* given, int64_t num_given) {
  for (int64_t i = 0; i < num_words; ++i) bits[i] &= i < num_given ? given[i] : 0;
}

// The bits of the tokens whose logits are there, and that masks, allowed and banned ids leave; null where
// these are all. None are beyond the vocabulary.
static const uint32_t* find_allowed(const SampleArgs& args, int64_t i, Work& w) {
  const SamplingRows& s = args.sampling;
  const int64_t row = args.rows[i];
  const int32_t *first_mask = s.mask_indptr + row, *allowed = s.allowed.begin(row),
                *banned = s.banned.begin(row);
  const bool has_list = allowed != s.allowed.end(row);
  if (args.there == nullptr && first_mask[0] == first_mask[1] && !has_list && banned == s.banned.end(row))
    return nullptr;
  const int64_t num_words = w.scores.n / 32;
  const auto num_bytes = static_cast<size_t>(num_words) * 4;
  std::memset(w.may, 0xff, num_bytes);
  if (args.there != nullptr) keep_bits(w.may, num_words, args.there + i * args.there_words, args.there_words);
  for (int32_t m = first_mask[0]; m < first_mask[1]; ++m)
    keep_bits(w.may, num_words, s.masks + m * s.mask_words, s.mask_words);
  if (has_list) {
    std::memset(w.listed, 0, num_bytes);
    for (; allowed != s.allowed.end(row); ++allowed) w.listed[*allowed / 32] |= 1u << (*allowed % 32);
    keep_bits(w.may, num_words, w.listed, num_words);
  }
  for (; banned != s.banned.end(row); ++banned) w.may[*banned / 32] &= ~(1u << (*banned % 32));
  for (int64_t id = args.vocab_size; id < w.scores.n; ++id) w.may[id / 32] &= ~(1u << (id % 32));
  return w.may;
}

static float to_score(double x) {  // a token that may be chosen stays so, however it is punished
  return x > kLargestFloat ? kLargestFloat : x < -kLargestFloat ? -kLargestFloat : static_cast<float>(x);
}

// Bias, then penalties: each in double, rounded to float32. Gives false where there are none. Tokens that are
// out stay out.
static bool adjust(const SamplingRows& s, int64_t row, Work& w) {
  const int32_t* const bias = s.bias.begin(row);
  const float* const values = s.bias_values + s.bias.indptr[row];
  const int64_t num_biases = s.bias.end(row) - bias;
  for (int64_t i = 0; i < num_biases; ++i) {
    float& score = w.scores.x[bias[i]];
    if (score != -kInfinity) score = to_score(static_cast<double>(score) + static_cast<double>(values[i]));
  }
  const double repetition = s.repetition_penalty[row], frequency = s.frequency_penalty[row],
               presence = s.presence_penalty[row];
  if (repetition == 1 && frequency == 0 && presence == 0) return num_biases > 0;
  const int32_t *const history = s.history.begin(row), *const end = s.history.end(row);
  auto* const counts = reinterpret_cast<int32_t*>(w.weights.x);  // of the ids of the history alone
  for (const int32_t* id = history; id != end; ++id) counts[*id] = 0;
  for (const int32_t* id = history + s.history_prompt_lens[row]; id < end; ++id) ++counts[*id];
  for (const int32_t* id = history; id != end; ++id) {
    const int32_t count = counts[*id];
    counts[*id] = -1;  // it is done
    float& score = w.scores.x[*id];
    if (count < 0 || score == -kInfinity) continue;
    double x = score;
    if (repetition != 1) x = x > 0 ? x / repetition : x * repetition;
    if (count > 0) x -= frequency * count + presence;
    score = to_score(x);
  }
  return true;
}

// The k largest scores. Each block has one that is at least its largest, so the k-th of the largest ones is a
// floor, and seldom far below.
static Cut largest_scores(const Work& w, int64_t k, float most) {
  const auto wanted = static_cast<double>(k);
  const Blocks tops{w.scores.largest, nullptr, whole_blocks(w.num_blocks)};
  float floor = -kLargestFloat;
  if (k <= w.num_blocks) floor = find_cut<false>(tops, floor, most, wanted, w.few).value;
  return find_cut<false>(w.scores, floor, most, wanted, w.few);
}

// The nucleus. Tokens whose weight is below (1 - top_p) / n of the total can together not be what it lacks.
static Cut nucleus(const Work& w, double top_p, double total) {
  const double floor = 0.5 * (1 - top_p) * total / static_cast<double>(w.weights.n);
  return find_cut<true>(w.weights, floor > 1e-37 ? static_cast<float>(floor) : 1e-37f, 1.0f, top_p * total,
                        w.few);
}

// --- weights ---

// exp((score - most) / temperature), and their sum. In a block whose largest score is below `floor`, all are
// 0.
static double weigh(Work& w, float most, float temperature, float floor) {
  const float inverse = 1 / temperature;  // infinite where the temperature is under the smallest normal float
  const f32x16 center = set(most), scale = set(inverse < kLargestFloat ? inverse : kLargestFloat);
  const float vanishing = most - 89 * temperature;  // exp is 0 from -88 on
  const float limit = floor > vanishing ? floor : vanishing;
  double total = 0;
  for (int64_t b = 0; b < w.num_blocks; ++b) {
    const int64_t start = b * kScanBlock;
    f32x16 sum = set(0.0f), heaviest = sum;
    if (w.scores.is_below(start, limit)) {
      std::memset(w.weights.x + start, 0, kScanBlock * sizeof(float));
    } else {
      for (int64_t i = start; i < start + kScanBlock; i += 16) {
        const f32x16 weight = exp(mul(sub(load(w.scores.x + i), center), scale));
        store(w.weights.x + i, weight);
        sum = add(sum, weight);
        heaviest = max(heaviest, weight);
      }
    }
    w.weights.largest[b] = reduce_max(heaviest);
    w.sums[b] = static_cast<double>(reduce_add(sum));
    total += w.sums[b];
  }
  return total;
}

// What is below the cut weighs nothing. Gives the new sum.
static double keep_weights(Work& w, const Cut& cut) {
  keep(w.weights, cut, 0.0f);
  double total = 0;
  for (int64_t b = 0; b < w.num_blocks; ++b) {
    const int64_t start = b * kScanBlock;
    f32x16 sum = set(0.0f);
    if (!w.weights.is_below(start, cut.value)) {
      for (int64_t i = start; i < start + kScanBlock; i += 16) sum = add(sum, load(w.weights.x + i));
    }
    w.sums[b] = static_cast<double>(reduce_add(sum));
    total += w.sums[b];
  }
  return total;
}

// The first id whose cumulated weight exceeds `target`. The block is found by sums in the order in which the
// total was taken, so there is one for a target below the total, and its weight is not 0. A target that
// rounding has moved past the block's end gives its last id.
static int64_t find_draw(const Work& w, double target) {
  int64_t b = 0;
  double reached = 0;
  while (b + 1 < w.num_blocks && !(reached + w.sums[b] > target)) reached += w.sums[b++];
  int64_t chosen = 0;
  for (int64_t i = b * kScanBlock; i < (b + 1) * kScanBlock; ++i) {
    if (w.weights.x[i] == 0) continue;
    chosen = i;
    reached += static_cast<double>(w.weights.x[i]);
    if (reached > target) break;
  }
  return chosen;
}

static int64_t draw(const SamplingRows& s, int64_t row, double u, int64_t vocab_size, Work& w, float most) {
  float floor = -kInfinity;
  if (s.top_k[row] > 0 && s.top_k[row] < vocab_size) {
    const Cut cut = largest_scores(w, s.top_k[row], most);
    keep(w.scores, cut, -kInfinity);
    floor = cut.value;
  }
  double total = weigh(w, most, s.temperature[row], floor);
  if (s.min_p[row] > 0) total = keep_weights(w, {s.min_p[row], 0});
  if (s.top_p[row] < 1) total = keep_weights(w, nucleus(w, static_cast<double>(s.top_p[row]), total));
  return find_draw(w, u * total);
}

static int64_t first_of(const Work& w, float score) {
  int64_t b = 0;
  while (w.scores.largest[b] < score) ++b;
  for (int64_t i = b * kScanBlock;; i += 16) {
    const uint32_t hits = at_least_bits(load(w.scores.x + i), set(score));
    if (hits != 0) return i + __builtin_ctz(hits);
  }
}

// Nothing is done to its logits: the largest is chosen, as it is.
static bool is_plain(const SamplingRows& s, int64_t row) {
  return s.temperature[row] == 0 && s.bias.begin(row) == s.bias.end(row) && s.repetition_penalty[row] == 1 &&
         s.frequency_penalty[row] == 0 && s.presence_penalty[row] == 0;
}

// Of the logits whose bit is set, the first of the largest; -1 where there is none.
static int64_t first_of_largest(const float* logits, const uint32_t* may, int64_t num_words) {
  int64_t best = -1;
  for (int64_t word = 0; word < num_words; ++word) {
    for (uint32_t left = may[word]; left != 0; left &= left - 1) {
      const int64_t id = word * 32 + __builtin_ctz(left);
      if (best < 0 || logits[id] > logits[best]) best = id;
    }
  }
  return best;
}

void sample(const SampleArgs& args, int64_t i, uint8_t* memory) {
  Work w(memory, args.vocab_size);
  const SamplingRows& s = args.sampling;
  const int64_t row = args.rows[i];
  const float* const logits = args.logits + i * args.vocab_size;
  const auto fail = [&](RowFault fault, int64_t size) {
    args.token_ids[i] = -1;
    args.faults[i] = fault;
    args.fault_sizes[i] = size;
  };
  const int32_t* const unknown = find_unknown_id(s, row, args.vocab_size);
  const uint32_t* const may = unknown == nullptr ? find_allowed(args, i, w) : nullptr;
  const bool is_partial = args.there != nullptr;
  if (is_partial && unknown != nullptr) return fail(RowFault::unknown_id, *unknown);
  const auto choose = [&](int64_t token_id) {
    args.token_ids[i] = static_cast<int32_t>(token_id);
    args.faults[i] = RowFault::none;
    args.fault_sizes[i] = 0;
  };
  if (is_partial && is_plain(s, row)) {  // few logits: to lay out all of them would take far longer
    const int64_t not_finite = count_not_finite(logits, args.vocab_size, may);
    if (not_finite > 0) return fail(RowFault::not_finite, not_finite);
    const int64_t best = first_of_largest(logits, may, w.scores.n / 32);
    return best < 0 ? fail(RowFault::none_left, 0) : choose(best);
  }
  const bool is_finite = is_partial ? copy_some_scores(logits, may, w.scores)
                                    : copy_scores(logits, args.vocab_size, may, w.scores);
  if (!is_finite)
    return fail(RowFault::not_finite, count_not_finite(logits, args.vocab_size, is_partial ? may : nullptr));
  if (unknown != nullptr) return fail(RowFault::unknown_id, *unknown);
  if (adjust(s, row, w)) find_largest(w.scores);
  const float most = largest_of(w);
  if (most == -kInfinity) return fail(RowFault::none_left, 0);
  const bool is_greedy = s.temperature[row] == 0;
  choose(is_greedy ? first_of(w, most) : draw(s, row, args.draws[i], args.vocab_size, w, most));
}

// --- logprobs ---

// Better ones, and equal ones with a lower id.
static int64_t count_before(const Blocks& scores, int64_t token_id) {
  const float score = scores.x[token_id];
  const f32x16 at_least = set(score), above = set(float_of(key_of(score) + 1));
  int64_t count = 0;
  for (int64_t start = 0; start < scores.n; start += kScanBlock) {
    if (scores.is_below(start, score)) continue;
    for (int64_t i = start; i < start + kScanBlock; i += 16) {
      const f32x16 v = load(scores.x + i);
      uint32_t better = at_least_bits(v, above);
      if (i + 16 <= token_id) {
        better = at_least_bits(v, at_least);
      } else if (i <= token_id) {
        better |= at_least_bits(v, at_least) & ((1u << (token_id - i)) - 1);
      }
      count += __builtin_popcount(better);
    }
  }
  return count;
}

// The `count` best ids and their scores, falling, equal ones by rising id. The scores of the others are lost.
static void find_best(const Work& w, int64_t count, float most, int32_t* ids, float* values) {
  const Cut cut = largest_scores(w, count, most);
  keep(w.scores, cut, -kInfinity);
  int64_t found = 0;
  for (int64_t i = 0; i < w.scores.n; i += 16) {
    if (w.scores.is_below(i, cut.value)) continue;
    for (uint32_t hits = at_least_bits(load(w.scores.x + i), set(cut.value)); hits != 0; hits &= hits - 1) {
      const int64_t id = i + __builtin_ctz(hits);
      int64_t at = found++;
      for (; at > 0 && values[at - 1] < w.scores.x[id]; --at) {
        ids[at] = ids[at - 1];
        values[at] = values[at - 1];
      }
      ids[at] = static_cast<int32_t>(id);
      values[at] = w.scores.x[id];
    }
  }
}

void logprobs(const LogprobArgs& args, int64_t i, uint8_t* memory) {
  if (args.num_best[i] < 0) return;
  Work w(memory, args.vocab_size);
  if (!copy_scores(args.logits + i * args.vocab_size, args.vocab_size, nullptr, w.scores)) {
    args.logprobs[i] = __builtin_nanf("");
    args.ranks[i] = static_cast<int32_t>(args.vocab_size);
    return;
  }
  const float most = largest_of(w);
  const double log_total = __builtin_log(weigh(w, most, 1.0f, -kInfinity));
  const auto logprob_of = [&](float score) {
    return static_cast<float>(static_cast<double>(score) - static_cast<double>(most) - log_total);
  };
  args.logprobs[i] = logprob_of(w.scores.x[args.token_ids[i]]);
  args.ranks[i] = static_cast<int32_t>(1 + count_before(w.scores, args.token_ids[i]));
  const int64_t count = args.num_best[i] < args.vocab_size ? args.num_best[i] : args.vocab_size;
  if (count == 0) return;
  float* const values = args.top_logprobs + i * args.width;
  find_best(w, count, most, args.top_ids + i * args.width, values);
  for (int64_t k = 0; k < count; ++k) values[k] = logprob_of(values[k]);
}

}  // namespace RAMET_ISA
}  // namespace ramet

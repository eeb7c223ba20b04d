// 64-byte aligned memory that is never initialised twice.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace ramet {

struct FreeMemory {
  void operator()(void* p) const { std::free(p); }
};
using Bytes = std::unique_ptr<uint8_t[], FreeMemory>;

// Large ones ask for huge pages, which spares a stream of weights its page-table walks.
inline Bytes allocate(size_t num_bytes) {
  constexpr size_t kHuge = size_t{1} << 21;
  const size_t alignment = num_bytes >= 2 * kHuge ? kHuge : 64;
  const size_t size = (num_bytes + alignment - 1) / alignment * alignment;
  void* p = std::aligned_alloc(alignment, size == 0 ? alignment : size);
  if (p == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  if (alignment == kHuge) madvise(p, size, MADV_HUGEPAGE);  // advice: it may be refused
#endif
  return Bytes(static_cast<uint8_t*>(p));
}

// Cuts pieces that stay from large blocks, so that those too small for huge pages of their own share them. A
// block goes with the last of its pieces: of pieces that come and go, two blocks at most are held in vain for
// each that stays.
class Quarry {
public:
  using Piece = std::shared_ptr<uint8_t[]>;

  Piece cut(size_t num_bytes) {
    const size_t size = num_bytes == 0 ? 64 : (num_bytes + 63) / 64 * 64;  // no two pieces are at one place
    if (size > kBlock / 4) return allocate(size);
    if (size > left_) {
      block_ = allocate(kBlock);
      left_ = kBlock;
    }
    left_ -= size;
    return {block_, block_.get() + (kBlock - left_ - size)};
  }

private:
  static constexpr size_t kBlock = size_t{1} << 24;
  Piece block_;
  size_t left_ = 0;
};

// A block that grows and keeps nothing when it does.
class Scratch {
public:
  template <class T>
  T* get(size_t count) {
    if (count * sizeof(T) > size_) {
      bytes_.reset();
      size_ = 0;  // and it stays so where there is no memory
      bytes_ = allocate(count * sizeof(T));
      size_ = count * sizeof(T);
    }
    return reinterpret_cast<T*>(bytes_.get());
  }

private:
  Bytes bytes_;
  size_t size_ = 0;
};

}  // namespace ramet

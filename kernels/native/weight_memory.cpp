// Regions of memory that weights are cut from.
#include "weight_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <new>

namespace graftlm {

constexpr int64_t kLargePage = 2 << 20;
// Address space of a shared region; its memory is taken a page at a time, as it is written.
constexpr int64_t kRegion = 32 << 20;

// Begins at a large page. Nothing of it is used twice, so that what is cut from it is zeros.
class WeightMemory::Region {
 public:
  explicit Region(int64_t bytes) : bytes_(bytes) {
    void* found = mmap(nullptr, static_cast<size_t>(bytes + kLargePage), PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) throw std::bad_alloc();
    auto* from = static_cast<uint8_t*>(found);
    const auto before = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(from) % kLargePage);
    begin_ = from + before;
    if (before) munmap(from, static_cast<size_t>(before));
    if (before < kLargePage) munmap(begin_ + bytes, static_cast<size_t>(kLargePage - before));
#if defined(MADV_HUGEPAGE)
    madvise(begin_, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a wish: small pages serve as well
#endif
  }
  ~Region() { munmap(begin_, static_cast<size_t>(bytes_)); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // The next `bytes`, or null.
  uint8_t* cut(int64_t bytes) {
    if (bytes > bytes_ - used_) return nullptr;
    uint8_t* found = begin_ + used_;
    used_ += (bytes + 63) / 64 * 64;
    return found;
  }

 private:
  uint8_t* begin_;
  int64_t bytes_;
  int64_t used_ = 0;
};

WeightMemory::WeightMemory(int64_t bytes) {
  constexpr int64_t kSmallPage = 64 << 10;  // of any system
  const int64_t whole = (std::max<int64_t>(bytes, 1) + kSmallPage - 1) / kSmallPage * kSmallPage;
  if (whole > kRegion / 4) {  // its own, so that little is lost behind it
    region_ = std::make_shared<Region>(whole);
    data_ = region_->cut(bytes);
    return;
  }
  static std::mutex changing;
  static std::weak_ptr<Region> last;
  std::lock_guard<std::mutex> lock(changing);
  region_ = last.lock();
  data_ = region_ ? region_->cut(bytes) : nullptr;
  if (!data_) {
    region_ = std::make_shared<Region>(kRegion);
    last = region_;
    data_ = region_->cut(bytes);
  }
}

}  // namespace graftlm

// Words of the workspace at which CTAs that share work are counted. A word holds the number of the run above the count;
// whatever else stands there is another run's, so a workspace needs no preparation.
#pragma once

#include "shared/tile_walk.h"

namespace heddle::portable {

template <class F>
class ArrivalWord {
 public:
  /// `launch`: the run's number.
  __device__ __forceinline__ ArrivalWord(shared::TicketWord* word, shared::TicketWord launch)
      : word_(word), launch_(launch) {}

  /// The word as it stands, for begin(). Memory takes a while to answer: there is time for other work in between.
  __device__ __forceinline__ shared::TicketWord found() const {
    return *static_cast<const volatile shared::TicketWord*>(word_);
  }
  /// The word counts for this run from here on. By the thread that arrives, before it does: so arriving takes one
  /// operation. CTAs that come later find the number and change nothing.
  __device__ __forceinline__ void begin(shared::TicketWord found) const {
    if (found >> shared::kTicketBits != launch_) F::compare_and_swap(word_, found, launch_ << shared::kTicketBits);
  }
  /// By one thread, behind what its CTA has left and a barrier: whether it is the last of `count`. The last one leaves
  /// 0, so that a run repeated by a graph, which has the same number, begins anew.
  __device__ __forceinline__ bool arrives_last(int count) const {
    const shared::TicketWord before = F::arrive(word_);
    if (static_cast<int>(before & (shared::kMaxTiles - 1)) + 1 != count) return false;
    *word_ = 0;
    return true;
  }

 private:
  shared::TicketWord* word_;
  shared::TicketWord launch_;
};

}  // namespace heddle::portable

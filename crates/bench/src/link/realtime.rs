//! Threads that must not wait for a core: what they do takes microseconds, and its time matters.

use thread_priority::{
    RealtimeThreadSchedulePolicy, ThreadPriority, ThreadPriorityValue, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

/// Low among real-time priorities: the kernel's own threads go first.
const PRIORITY: u8 = 5;

/// Lets this thread, and processes that it starts, run before all ordinary ones. Returns whether
/// that was granted, which takes root; without it, times are as good as the machine is idle.
pub fn be_realtime() -> bool {
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    let priority = ThreadPriorityValue::try_from(PRIORITY).map(ThreadPriority::Crossplatform);
    priority.is_ok_and(|priority| {
        set_thread_priority_and_policy(thread_native_id(), priority, policy).is_ok()
    })
}

//! The numbers of the overview for a key that sees only its own tasks, or those of its team.

use crate::files::size;
use crate::refused::Refused;
use crate::times::{cost, dollars};
use crate::visit::Visit;
use bloom_api::keys::WhoAmI;
use bloom_api::queues::Queue;
use bloom_api::reports::UsageRow;
use bloom_core::DAY_MS;

pub(crate) struct Own {
    /// The number of the team's queued tasks, and the number of those that workers have; `None` if the key may not see queues.
    pub counts: Option<(i64, i64)>,
    /// The cost of the runs that ended since midnight, UTC.
    pub cost_today: String,
    /// How much of each limit of its quota is used, and the name of the limit.
    pub quota: Vec<(String, &'static str)>,
}

impl Own {
    /// # Errors
    /// The API refuses a call. What the key may not see is left out.
    pub(crate) async fn of(visit: &Visit) -> Result<Self, Refused> {
        let lang = visit.layout.at.lang;
        // The first row is that of all queues together.
        let queues = visit.list_if_allowed("queues?limit=1", |queue: Queue<'_>| (queue.queued, queue.active_leases)).await?;
        let midnight = visit.layout.now / DAY_MS * DAY_MS;
        let told = |row: UsageRow<'_>| cost(lang, row.cost_usd, row.cost_estimated);
        let today = visit.list(&format!("usage?by=day&from={midnight}"), told).await?.rows.into_iter().next();
        let caller: WhoAmI<'_> = visit.get("whoami").await?;
        let limits = caller.key.and_then(|key| key.quota).unwrap_or_default();
        let of = |used: Option<i64>, most: Option<i64>, told: &dyn Fn(i64) -> String| {
            used.zip(most).map(|(used, most)| format!("{} {} {}", told(used), lang.t("of", "із"), told(most)))
        };
        let open = of(limits.open_tasks, limits.max_open_tasks, &|count| count.to_string());
        let stored = of(limits.stored_bytes, limits.max_stored_bytes, &|bytes| size(lang, bytes));
        let quota = [
            (open, lang.t("open tasks of your quota", "незавершених завдань за вашою квотою")),
            (stored, lang.t("stored of your quota", "збережено за вашою квотою")),
        ];
        Ok(Self {
            counts: queues.and_then(|queues| queues.rows.into_iter().next()),
            cost_today: today.unwrap_or_else(|| dollars(lang, 0.0)),
            quota: quota.into_iter().filter_map(|(used, limit)| Some((used?, limit))).collect(),
        })
    }
}

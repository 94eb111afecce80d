//! The filters of the list of tasks. They are stored in the address of the list.

use std::borrow::Cow;

use serde_json::{Map, Value, json};
use url::form_urlencoded;

use crate::lang::Lang;
use crate::refused::Refused;
use crate::visit::Fields;
use bloom_core::Ms;
use bloom_core::task::{Reason, Status};

/// The filters, by their names in addresses. `since` limits how long ago a task was created, and `finished_since` how long ago it ended.
pub(crate) const NAMES: [&str; 15] = [
    "status",
    "asks",
    "agent_slug",
    "context_id",
    "worker_id",
    "project",
    "owner",
    "team",
    "reason",
    "depends_on",
    "label",
    "since",
    "finished_since",
    "id",
    "text",
];
/// The possible values of these two.
const TIMES: [(&str, Ms); 4] = [("1h", 3_600_000), ("24h", 86_400_000), ("7d", 7 * 86_400_000), ("30d", 30 * 86_400_000)];

/// All fields of the list's address: the filters, the order and the page.
pub(crate) fn kept() -> Vec<&'static str> {
    [&NAMES[..], &["sort", "cursor"]].concat()
}

/// The time that one of [`TIMES`] means; `None` for another word.
pub(crate) fn moment(word: &str, now: Ms) -> Option<Ms> {
    TIMES.iter().find(|(known, _)| *known == word).map(|(_, span)| (now - span).max(0))
}

/// The filter `reason`; empty: all reasons.
///
/// # Errors
/// It is no reason.
pub(crate) fn reason_of(fields: &Fields) -> Result<String, Refused> {
    fields.word("reason", &Reason::ALL.iter().map(|reason| reason.as_str()).collect::<Vec<_>>())
}

/// The possible reasons of failures and their labels.
pub(crate) fn reasons(lang: Lang) -> Vec<(&'static str, Cow<'static, str>)> {
    Reason::ALL.iter().map(|reason| (reason.as_str(), lang.word(reason.as_str()))).collect()
}

/// The possible times and their labels.
pub(crate) fn times(lang: Lang) -> [(&'static str, &'static str); 4] {
    let names = [
        lang.t("in the last hour", "за останню годину"),
        lang.t("in the last day", "за останню добу"),
        lang.t("in the last week", "за останній тиждень"),
        lang.t("in the last 30 days", "за останні 30 днів"),
    ];
    std::array::from_fn(|at| (TIMES[at].0, names[at]))
}

/// The filters that are set, for the form.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    pub status: String,
    /// `true`: only tasks whose runs wait for the answer of a person.
    pub asks: String,
    pub agent_slug: String,
    pub context_id: String,
    pub worker_id: String,
    pub project: String,
    /// The key that created the tasks.
    pub owner: String,
    /// The team of that key.
    pub team: String,
    /// Why the tasks failed.
    pub reason: String,
    /// The task on which the tasks depend.
    pub depends_on: String,
    pub labels: Vec<String>,
    pub since: String,
    pub finished_since: String,
    pub id: String,
    /// The text to search for.
    pub text: String,
}

impl Filter {
    /// # Errors
    /// A field is neither a filter nor among `others`, or a filter has an unknown value. If it were ignored, the list would have other
    /// tasks than the visitor meant.
    pub(crate) fn of(fields: &Fields, others: &[&str]) -> Result<Self, Refused> {
        fields.only(&[&NAMES, others].concat())?;
        let statuses: Vec<_> = Status::ALL.iter().map(|status| status.as_str()).collect();
        Ok(Self {
            status: fields.word("status", &statuses)?,
            asks: fields.word("asks", &["true"])?,
            agent_slug: fields.text("agent_slug"),
            context_id: fields.text("context_id"),
            worker_id: fields.text("worker_id"),
            project: fields.text("project"),
            owner: fields.text("owner"),
            team: fields.text("team"),
            reason: reason_of(fields)?,
            depends_on: fields.text("depends_on"),
            labels: fields.all("label").map(str::to_owned).collect(),
            since: fields.word("since", &TIMES.map(|(word, _)| word))?,
            finished_since: fields.word("finished_since", &TIMES.map(|(word, _)| word))?,
            id: fields.text("id"),
            text: fields.text("text"),
        })
    }

    pub(crate) fn of_status(status: Status) -> Self {
        Self { status: status.as_str().to_owned(), ..Self::default() }
    }

    /// The tasks whose runs wait for a person.
    pub(crate) fn asking() -> Self {
        Self { asks: "true".to_owned(), ..Self::default() }
    }

    /// The tasks that ended with this status in the last hour.
    pub(crate) fn of_last_hour(status: Status) -> Self {
        Self { finished_since: TIMES[0].0.to_owned(), ..Self::of_status(status) }
    }

    /// The tasks that ended with this status in the last day.
    pub(crate) fn of_last_day(status: Status) -> Self {
        Self { finished_since: TIMES[1].0.to_owned(), ..Self::of_status(status) }
    }

    /// The statuses to list; the API is called for each, and `None` stands for any. To people, a task has also failed if it has no attempts
    /// left, and it is also running as soon as a worker has it.
    pub(crate) fn statuses(&self) -> Vec<Option<Status>> {
        match Status::parse(&self.status) {
            // A search by id finds tasks of every status.
            _ if !self.id.is_empty() => vec![None],
            Some(Status::Failed) => vec![Some(Status::Failed), Some(Status::Dead)],
            Some(Status::Running) => vec![Some(Status::Leased), Some(Status::Running)],
            one => vec![one],
        }
    }

    /// Whether a bulk call accepts this filter. It requires at least one filter, and does not support parts of ids and text search.
    pub(crate) fn is_for_bulk(&self) -> bool {
        self.id.is_empty() && self.text.is_empty() && !self.given().is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.id.is_empty() && self.text.is_empty() && self.given().is_empty()
    }

    /// Whether a filter is set besides the tabs and the text, which are always visible.
    pub(crate) fn has_more(&self) -> bool {
        !self.id.is_empty() || self.given().iter().any(|(name, _)| !["status", "asks"].contains(name))
    }

    /// The filters that are set, by their names in addresses.
    pub(crate) fn given(&self) -> Vec<(&'static str, &str)> {
        let one = [
            ("status", &self.status),
            ("asks", &self.asks),
            ("agent_slug", &self.agent_slug),
            ("context_id", &self.context_id),
            ("worker_id", &self.worker_id),
            ("project", &self.project),
            ("owner", &self.owner),
            ("team", &self.team),
            ("reason", &self.reason),
            ("depends_on", &self.depends_on),
            ("since", &self.since),
            ("finished_since", &self.finished_since),
        ];
        let labels = self.labels.iter().map(|label| ("label", label));
        let all = one.into_iter().chain(labels);
        all.filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name, value.as_str())).collect()
    }

    /// The time filters, by their names in the API.
    fn times(&self, now: Ms) -> impl Iterator<Item = (&'static str, Ms)> {
        let times = [("created_after", moment(&self.since, now)), ("finished_after", moment(&self.finished_since, now))];
        times.into_iter().filter_map(|(name, at)| Some((name, at?)))
    }

    /// The query for the API's list, for one of the statuses.
    pub(crate) fn query(&self, status: Option<Status>, now: Ms) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        if !self.id.is_empty() {
            return query.append_pair("id", &self.id.replace('-', "")).finish();
        }
        if !self.text.is_empty() {
            query.append_pair("search", &self.text);
        }
        query.extend_pairs(status.map(|status| ("status", status.as_str())));
        query.extend_pairs(self.given().into_iter().filter(|(name, _)| !["status", "since", "finished_since"].contains(name)));
        query.extend_pairs(self.times(now).map(|(name, at)| (name, at.to_string())));
        query.finish()
    }

    /// The filter in the body of a bulk call.
    pub(crate) fn body(&self, now: Ms) -> Value {
        let mut body = Map::new();
        let statuses: Vec<&str> = self.statuses().into_iter().flatten().map(Status::as_str).collect();
        if !statuses.is_empty() {
            body.insert("status".into(), json!(statuses.join(",")));
        }
        for (name, value) in self.given() {
            match name {
                "status" | "label" | "since" | "finished_since" => {}
                "asks" => drop(body.insert(name.to_owned(), json!(true))),
                _ => drop(body.insert(name.to_owned(), json!(value))),
            }
        }
        if !self.labels.is_empty() {
            body.insert("label".into(), json!(self.labels));
        }
        body.extend(self.times(now).map(|(name, at)| (name.to_owned(), json!(at))));
        Value::Object(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_sent_as_it_was_given() {
        let filter =
            Filter::of(&Fields::parse(b"status=dead&label=a%3D1&label=b%3D2&since=1h&finished_since=24h&agent_slug="), &[]).unwrap();
        let [status] = filter.statuses()[..] else { panic!("{:?}", filter.statuses()) };
        let now = 86_400_005;
        assert_eq!(filter.query(status, now), "status=dead&label=a%3D1&label=b%3D2&created_after=82800005&finished_after=5");
        let body = json!({ "status": "dead", "label": ["a=1", "b=2"], "created_after": 82_800_005, "finished_after": 5 });
        assert_eq!(filter.body(now), body);
        assert!(filter.is_for_bulk() && !Filter::default().is_for_bulk());
        let with_text = Filter { text: "ÄB".into(), ..filter };
        assert!(!with_text.is_for_bulk() && with_text.query(None, 3_600_005).starts_with("search=%C3%84B&"));
    }
    #[test]
    fn a_failed_task_may_be_dead_and_a_running_one_leased() {
        let statuses = |status| Filter::of_status(status).statuses().into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(statuses(Status::Failed), [Status::Failed, Status::Dead]);
        assert_eq!(statuses(Status::Running), [Status::Leased, Status::Running]);
        assert_eq!(statuses(Status::Dead), [Status::Dead]);
        assert_eq!(Filter::default().statuses(), [None]);
    }
}

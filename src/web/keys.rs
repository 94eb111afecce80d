//! Named keys: the list with the form that creates a key, the page of a key with its quota, and the page of the visitor's own
//! key.

use std::collections::BTreeSet;

use askama::Template;
use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::answer::see_other;
use crate::call::path_part;
use crate::files::size;
use crate::lang::Lang;
use crate::refused::{Refused, Wrong};
use crate::scopes;
use crate::spent;
use crate::times::shortened;
use crate::visit::{Fields, Layout, Posted, Visit};
use bloom_api::keys::{CreatedKey, Key, KeyQuota, WhoAmI};
use bloom_api::time_text;
use bloom_core::Ms;
use bloom_core::api_key::Scope;

const ROWS: usize = 60;
const NAME_CHARS: usize = 200;
/// The maximum number of teams that the form offers.
const TEAMS: usize = 100;
/// The limits of a quota: the field of the form, the field of the API, and how many units of the API are one unit of the form.
const QUOTA: [(&str, &str, i64); 3] = [
    ("max_open_tasks", "max_open_tasks", 1),
    ("max_tasks_per_minute", "max_tasks_per_minute", 1),
    ("max_stored_mib", "max_stored_bytes", 1 << 20),
];

pub(crate) struct Row {
    pub name: String,
    pub scope: String,
    /// Whom the key is for: its team, its worker and the rights of that worker, or nobody in particular.
    of: Vec<String>,
    team: Option<String>,
    worker: Option<String>,
    quota: Vec<String>,
    limits: KeyQuota,
    created_at: Ms,
    created_by: String,
    last_used_at: Option<Ms>,
    former_until: Option<Ms>,
    expires_at: Option<Ms>,
    has_expired: bool,
}

impl Row {
    /// What the key may do; empty if another version of the server has made it, with a scope that this one does not know.
    fn opens(&self, v: &Layout) -> &'static str {
        Scope::parse(&self.scope).map(|scope| scopes::opens(v.at.lang, scope)).unwrap_or_default()
    }

    /// Whether the key may have a quota.
    pub(crate) fn owns_tasks(&self) -> bool {
        Scope::parse(&self.scope).is_some_and(Scope::owns_tasks)
    }

    /// The command that gives the agent of this key's worker a new key, if the agent has enrolled with a join token.
    fn token_again(&self) -> Option<String> {
        let worker = self.worker.as_deref().filter(|_| self.scope == Scope::Worker.as_str())?;
        let name = quoted(&format!("{worker}-again"));
        Some(format!("bloom-runtime key create {name} --scope join --worker {}", quoted(worker)))
    }

    /// Whether the key may get a new secret.
    fn may_rotate(&self) -> bool {
        !self.has_expired && self.scope != Scope::Join.as_str()
    }
}

fn row(v: &Layout, key: Key<'_>) -> Row {
    let told = |name: &str, value: &str| format!("{name} {}", shortened(value, NAME_CHARS));
    let namespaces = key.namespaces.as_ref().map(|names| told(v.t("namespaces", "простори імен"), &names.join(", ")));
    let of = [
        key.team.as_ref().map(|team| told(v.t("team", "команда"), team)),
        key.worker.as_ref().map(|worker| told(v.t("worker", "воркер"), worker)),
        key.push.then(|| v.t("takes pushes", "приймає передані завдання").to_owned()),
        namespaces,
    ];
    let limits = key.quota.unwrap_or_default();
    Row {
        name: key.name.into_owned(),
        scope: key.scope.to_string(),
        of: of.into_iter().flatten().collect(),
        quota: quota(v.at.lang, &limits),
        limits,
        team: key.team.map(|team| team.into_owned()),
        worker: key.worker.map(|worker| worker.into_owned()),
        created_at: key.created_at,
        created_by: shortened(&key.created_by, NAME_CHARS),
        last_used_at: key.last_used_at,
        former_until: key.former_until.filter(|at| *at > v.now),
        expires_at: key.expires_at,
        has_expired: key.expires_at.is_some_and(|at| at <= v.now),
    }
}

/// The limits, and how much of each is used.
fn quota(lang: Lang, quota: &KeyQuota) -> Vec<String> {
    let of = |used: Option<i64>, most: i64, told: &dyn Fn(i64) -> String| match used {
        Some(used) => format!("{} {} {}", told(used), lang.t("of", "із"), told(most)),
        None => told(most),
    };
    let bytes = |bytes| size(lang, bytes);
    let parts = [
        quota.max_open_tasks.map(|most| {
            lang.t("open tasks: ", "незавершених завдань: ").to_owned() + &of(quota.open_tasks, most, &|count| count.to_string())
        }),
        quota.max_tasks_per_minute.map(|most| lang.t(format!("{most} tasks a minute"), format!("{most} завдань на хвилину"))),
        quota.max_stored_bytes.map(|most| lang.t("stored: ", "збережено: ").to_owned() + &of(quota.stored_bytes, most, &bytes)),
    ];
    parts.into_iter().flatten().collect()
}

#[derive(Template)]
#[template(path = "keys.html")]
struct Keys<'a> {
    v: &'a Layout,
    rows: Vec<Row>,
    next: Option<String>,
    /// The teams of all keys, by name.
    teams: BTreeSet<String>,
    /// What was typed into the form.
    typed: &'a Fields,
    wrong: Wrong,
    done: bool,
}

/// A field of a form: name, label and hint.
type Input = (&'static str, &'static str, &'static str);

fn quota_inputs(v: &Layout) -> [Input; 3] {
    let empty = v.t("Empty: no limit.", "Порожньо: без обмеження.");
    [
        (QUOTA[0].0, v.t("Open tasks", "Незавершені завдання"), empty),
        (QUOTA[1].0, v.t("Tasks in a minute", "Завдань на хвилину"), empty),
        (QUOTA[2].0, v.t("Stored (MiB)", "Збережено (МіБ)"), empty),
    ]
}

impl Keys<'_> {
    fn common_inputs(&self) -> [Input; 1] {
        let hint = self.v.t(
            "Such as 90d, 12h, 1y or a day like 2027-01-01 (its beginning, UTC); empty: never, and a join token in a day.",
            "Наприклад 90d, 12h, 1y або день на кшталт 2027-01-01 (його початок, UTC); порожньо: ніколи, а токен приєднання — за добу.",
        );
        [("expires_in", self.v.t("Expires in or on", "Закінчується"), hint)]
    }

    /// For keys that own tasks.
    fn owner_inputs(&self) -> [Input; 4] {
        let hint = self
            .v
            .t("Its members see the tasks of the key; member needs one.", "Її учасники бачать завдання ключа; для member обов’язкова.");
        let [open, per_minute, stored] = quota_inputs(self.v);
        [("team", self.v.t("Team", "Команда"), hint), open, per_minute, stored]
    }

    /// For keys of workers.
    fn worker_inputs(&self) -> [Input; 2] {
        let t = |english, ukrainian| self.v.t(english, ukrainian);
        let namespaces = t("Of Kubernetes, with commas between them; empty: no limit.", "Kubernetes, через кому; порожньо: без обмеження.");
        [
            ("worker", t("Worker", "Воркер"), t("The worker that the key is for.", "Воркер, для якого цей ключ.")),
            ("namespaces", t("Namespaces", "Простори імен"), namespaces),
        ]
    }

    fn typed(&self, field: &str) -> String {
        self.typed.text(field)
    }

    fn wrong(&self, field: &str) -> Option<&String> {
        self.wrong.get(field)
    }

    /// The scopes: word, label, and what a key of the scope may do.
    fn scopes(&self) -> impl Iterator<Item = (&'static str, String, &'static str)> {
        let lang = self.v.at.lang;
        Scope::ALL.iter().map(move |scope| {
            let word = scope.as_str();
            (word, lang.t(word.to_owned(), format!("{} ({word})", lang.word(word))), scopes::opens(lang, *scope))
        })
    }
}

async fn keys(visit: &Visit) -> Result<Vec<Row>, Refused> {
    Ok(visit.list("keys", |key| row(&visit.layout, key)).await?.rows)
}

async fn page<'a>(visit: &'a Visit, typed: &'a Fields) -> Result<Keys<'a>, Refused> {
    let after = visit.query().get("cursor").unwrap_or_default();
    // The API returns all keys at once, ordered by name.
    let known = keys(visit).await?;
    let teams = known.iter().filter_map(|row| row.team.clone()).collect::<BTreeSet<_>>().into_iter().take(TEAMS).collect();
    let mut rows: Vec<Row> = known.into_iter().filter(|row| row.name.as_str() > after).collect();
    let more = rows.len() > ROWS;
    rows.truncate(ROWS);
    let next = rows.last().filter(|_| more).map(|last| format!("/keys?cursor={}", path_part(&last.name)));
    let done = visit.query().get("done").is_some();
    Ok(Keys { v: &visit.layout, rows, next, teams, typed, wrong: Wrong::new(), done })
}

pub(crate) async fn list(visit: Visit) -> Result<Response, Refused> {
    // A link may choose the scope of the form.
    visit.query().only(&["cursor", "done", "scope"])?;
    if !visit.layout.is_admin() {
        return own(&visit).await;
    }
    visit.ok(&page(&visit, visit.query()).await?)
}

#[derive(Template)]
#[template(path = "your_key.html")]
struct YourKey<'a> {
    v: &'a Layout,
    /// `None` if the key is one of the server's settings and has no name.
    key: Option<Row>,
    spent: String,
}

impl YourKey<'_> {
    /// What a key of the server's settings may do.
    fn opens(&self) -> &'static str {
        scopes::opens(self.v.at.lang, self.v.scope)
    }
}

/// The page of the visitor's own key. Visitors who are not administrators see no other keys.
async fn own(visit: &Visit) -> Result<Response, Refused> {
    let caller: WhoAmI<'_> = visit.get("whoami").await?;
    let key = caller.key.map(|key| row(&visit.layout, key));
    let spent = match &key {
        Some(key) => spent_by(visit, key).await?,
        None => String::new(),
    };
    visit.ok(&YourKey { v: &visit.layout, key, spent })
}

#[derive(Template)]
#[template(path = "key_created.html")]
struct Created<'a> {
    v: &'a Layout,
    name: String,
    key: &'a str,
    /// `Some` if the key replaces another one; the time is how long the former one stays valid, if it does.
    rotated: Option<Option<Ms>>,
    /// The address of the server.
    address: &'a str,
    /// Whether it is for a person or a program, and not for a worker.
    is_for_person: bool,
    is_join: bool,
    worker: Option<String>,
}

/// Creates a key. The response itself shows the key, because an address with the key would stay in histories and logs.
pub(crate) async fn create(Posted { visit, fields, .. }: Posted) -> Result<Response, Refused> {
    let refused = match body(&visit.layout, &fields) {
        Ok(body) => match visit.post("keys", &body).await {
            Ok(created) => return hand_over(&visit, StatusCode::CREATED, created),
            Err(refused) => refused,
        },
        Err(wrong) => Refused::of_fields(wrong),
    };
    let wrong = match refused.status {
        400 if !refused.fields.is_empty() => of_form(refused.fields),
        // The name is taken, there are too many, or the server has no admin key.
        409 => Wrong::from([("name".to_owned(), refused.text.text(&visit.layout.at).to_owned())]),
        _ => return Err(refused),
    };
    let status = StatusCode::from_u16(refused.status).unwrap_or(StatusCode::BAD_REQUEST);
    visit.show(status, &Keys { wrong, ..page(&visit, &fields).await? })
}

fn hand_over(visit: &Visit, status: StatusCode, created: CreatedKey<'_>) -> Result<Response, Refused> {
    let scope = created.about.scope.to_string();
    let page = Created {
        v: &visit.layout,
        name: created.about.name.into_owned(),
        key: &created.key,
        rotated: (status == StatusCode::OK).then_some(created.about.former_until),
        address: &visit.address,
        is_for_person: ![Scope::Worker, Scope::Join].iter().any(|of_worker| of_worker.as_str() == scope),
        is_join: scope == Scope::Join.as_str(),
        worker: created.about.worker.map(|worker| quoted(&worker)),
    };
    visit.show(status, &page)
}

/// Quotes a text as one word of a shell command.
fn quoted(text: &str) -> String {
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if is_plain { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// Maps the fields of the API to those of the form. The text about a quota names the limit that is wrong.
fn of_form(fields: Wrong) -> Wrong {
    let name = |field: String, text: &str| match field.as_str() {
        "expires_in_sec" => "expires_in".to_owned(),
        "quota" => QUOTA.into_iter().find(|(_, name, _)| text.contains(name)).unwrap_or(QUOTA[0]).0.to_owned(),
        _ => QUOTA.into_iter().find(|(_, name, _)| *name == field).map_or(field, |(of_form, ..)| of_form.to_owned()),
    };
    fields.into_iter().map(|(field, text)| (name(field, &text), text)).collect()
}

/// The limits that were typed. The API checks whether they are within the allowed range.
fn limits(v: &Layout, fields: &Fields) -> Result<Map<String, Value>, Wrong> {
    let mut quota = Map::new();
    for (field, name, units) in QUOTA {
        let wrong = |text: &str| Wrong::from([(field.to_owned(), text.to_owned())]);
        match fields.get(field).map(|text| text.trim().parse::<f64>()) {
            None => {}
            Some(Ok(number)) if number.is_finite() && (units > 1 || number.fract() == 0.0) => {
                quota.insert(name.to_owned(), json!((number * units as f64) as i64));
            }
            Some(_) if units > 1 => return Err(wrong(v.t("Expected a number", "Очікується число"))),
            Some(_) => return Err(wrong(v.t("Expected a whole number", "Очікується ціле число"))),
        }
    }
    Ok(quota)
}

fn body(v: &Layout, fields: &Fields) -> Result<Value, Wrong> {
    let mut body = Map::new();
    for name in ["name", "scope", "team", "worker"] {
        body.extend(fields.get(name).map(|text| (name.to_owned(), json!(text.trim()))));
    }
    if let Some(text) = fields.get("expires_in") {
        let seconds = time_text::seconds_until(text.trim(), v.now).map_err(|text| Wrong::from([("expires_in".to_owned(), text)]))?;
        body.insert("expires_in_sec".into(), json!(seconds));
    }
    if let Some(names) = fields.get("namespaces") {
        body.insert("namespaces".into(), json!(names.split([',', ' ']).filter(|name| !name.is_empty()).collect::<Vec<_>>()));
    }
    if fields.get("push").is_some() {
        body.insert("push".into(), json!(true));
    }
    let quota = limits(v, fields)?;
    if !quota.is_empty() {
        body.insert("quota".into(), Value::Object(quota));
    }
    Ok(Value::Object(body))
}

#[derive(Template)]
#[template(path = "key.html")]
struct KeyPage<'a> {
    v: &'a Layout,
    key: Row,
    /// The recent cost of its tasks.
    spent: String,
    /// What was typed into the form of the quota.
    typed: Option<&'a Fields>,
    wrong: Wrong,
    done: bool,
}

impl KeyPage<'_> {
    fn inputs(&self) -> [Input; 3] {
        quota_inputs(self.v)
    }

    fn typed(&self, field: &str) -> String {
        let limits = &self.key.limits;
        let set = [limits.max_open_tasks, limits.max_tasks_per_minute, limits.max_stored_bytes];
        // A fraction of a unit, which a call of the API may have set, is kept.
        let shown = |most: i64, units: i64| (most as f64 / units as f64).to_string();
        let set =
            || QUOTA.iter().zip(set).find(|((name, ..), _)| *name == field).and_then(|((.., units), most)| Some(shown(most?, *units)));
        self.typed.map_or_else(|| set().unwrap_or_default(), |typed| typed.text(field))
    }

    fn wrong(&self, field: &str) -> Option<&String> {
        self.wrong.get(field)
    }
}

/// Finds a key in the list of all keys, because the API has no call for a single key.
pub(crate) async fn find(visit: &Visit, name: &str) -> Result<Row, Refused> {
    let found = keys(visit).await?.into_iter().find(|row| row.name == name);
    found.ok_or_else(|| Refused::new(404, "There is no such key", "Такого ключа немає"))
}

async fn spent_by(visit: &Visit, key: &Row) -> Result<String, Refused> {
    if key.owns_tasks() { spent::lately(visit, "created_by", &format!("key:{}", key.name)).await } else { Ok(String::new()) }
}

pub(crate) async fn show(Path(name): Path<String>, visit: Visit) -> Result<Response, Refused> {
    let key = find(&visit, &name).await?;
    let spent = spent_by(&visit, &key).await?;
    visit.ok(&KeyPage { v: &visit.layout, key, spent, typed: None, wrong: Wrong::new(), done: visit.query().get("done").is_some() })
}

pub(crate) async fn act(Path((name, action)): Path<(String, String)>, Posted { visit, fields, .. }: Posted) -> Result<Response, Refused> {
    let path = format!("keys/{}", path_part(&name));
    match action.as_str() {
        "revoke" => {
            visit.act(Method::DELETE, &path, &json!({})).await?;
            Ok(see_other("/keys?done=1"))
        }
        "quota" => {
            let changed = match limits(&visit.layout, &fields) {
                Ok(none) if none.is_empty() => visit.act(Method::DELETE, &format!("{path}/quota"), &json!({})).await,
                Ok(quota) => visit.act(Method::POST, &format!("{path}/quota"), &Value::Object(quota)).await,
                Err(wrong) => Err(Refused::of_fields(wrong)),
            };
            match changed {
                Ok(_) => Ok(see_other(&format!("/{path}?done=1"))),
                Err(refused) if !refused.fields.is_empty() => {
                    let key = find(&visit, &name).await?;
                    let spent = spent_by(&visit, &key).await?;
                    let page = KeyPage { v: &visit.layout, key, spent, typed: Some(&fields), wrong: refused.fields, done: false };
                    visit.show(StatusCode::BAD_REQUEST, &page)
                }
                Err(refused) => Err(refused),
            }
        }
        "rotate" => {
            // If the value is not a number, the API refuses it and says what it expects.
            let overlap = fields.text("overlap_sec");
            let body = json!({ "overlap_sec": overlap.parse::<i64>().map_or_else(|_| json!(overlap), |seconds| json!(seconds)) });
            let rotated = visit.post(&format!("{path}/rotate"), &body).await?;
            hand_over(&visit, StatusCode::OK, rotated)
        }
        _ => Err(Refused::new(404, "There is no such button", "Такої кнопки немає")),
    }
}

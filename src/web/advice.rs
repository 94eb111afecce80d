//! Why a task waits or did not succeed, in plain words, and what to do about it on these pages.

use super::lang::Lang;
use super::notes::Note;
use bloom_api::tasks::{Task, Waiting};
use bloom_api::words::{AnyReason, Word};
use bloom_core::pause::DISK_PAUSED;
use bloom_core::task::{NOT_PUSHED, Reason, Status, WaitingReason};

/// What Claude says when its provider refuses the account. It gives no further detail, whatever the reason of the failure is.
const ACCOUNT_REFUSED: &str = "authentication_failed";

pub(crate) struct Advice {
    /// What happened.
    pub title: &'static str,
    /// The details in English, as the server or the agent reported them.
    pub message: Note,
    pub to_do: &'static str,
    /// What is worth knowing about the attempts before the last one.
    pub earlier: &'static str,
    /// `bad` or `wait`.
    pub kind: &'static str,
}

/// `None` if there is nothing to say: the task runs, or has completed.
pub(crate) fn of(lang: Lang, task: &Task<'_>) -> Option<Advice> {
    let t = |english, ukrainian| lang.t(english, ukrainian);
    let Word::Known(status) = task.status else { return None };
    if let Some(waiting) = &task.waiting {
        let (title, to_do) = match waiting.reason {
            Word::Known(WaitingReason::NotBefore) if task.failure.as_ref().is_some_and(|failure| is_of_provider(&failure.reason)) => (
                t("It is tried again after a failure", "Його буде повторено після помилки"),
                t(
                    "The provider had no room. Nothing needs to be done: it is tried again by itself at that time.",
                    "Постачальник був перевантажений. Нічого робити не треба: у цей час його буде повторено автоматично.",
                ),
            ),
            Word::Known(WaitingReason::NotBefore) if task.failure.is_some() => (
                t("It is tried again after a failure", "Його буде повторено після помилки"),
                t(
                    "Mend what the message says. It is tried again by itself at that time.",
                    "Усуньте те, про що сказано в повідомленні. У цей час його буде повторено автоматично.",
                ),
            ),
            Word::Known(WaitingReason::WorkerPaused) if waiting.message.contains(DISK_PAUSED) => (
                t("The disk of its workers is full", "Диск його воркерів заповнений"),
                t(
                    "Make room on the worker's disk: see Workers. Then it goes on by itself.",
                    "Звільніть місце на диску воркера: див. «Воркери». Тоді воно продовжиться автоматично.",
                ),
            ),
            Word::Known(reason) => waits(lang, reason),
            Word::Other(_) => (t("It waits", "Воно очікує"), ""),
        };
        let is_told = is_told_by_title(task, waiting);
        let message = if is_told { Note::default() } else { Note::of_waiting(waiting, &waiting.message) };
        return Some(Advice { title, message, to_do, earlier: "", kind: "wait" });
    }
    let message = task.failure.as_ref().map(|failure| failure.message.to_string()).unwrap_or_default();
    let (title, to_do) = match (status, task.failure.as_ref().map(|failure| &failure.reason)) {
        (Status::Cancelled, None) => cancelled(lang),
        (Status::Failed | Status::Dead, Some(Word::Known(Reason::Project))) if message.contains(NOT_PUSHED) => (
            t("Its branch could not be pushed", "Не вдалося надіслати його гілку"),
            t(
                "Mend what the message says, then push the branch by hand on its worker. To requeue it runs the prompt again, and pays for it again.",
                "Усуньте те, про що сказано в повідомленні, тоді надішліть гілку вручну на його воркері. Повернення в чергу знову виконає промпт і знову коштуватиме.",
            ),
        ),
        (Status::Failed | Status::Dead, Some(_)) if message.contains(ACCOUNT_REFUSED) => failed(lang, Reason::Auth),
        (Status::Failed | Status::Dead | Status::Cancelled, Some(Word::Known(reason))) => failed(lang, *reason),
        (Status::Failed | Status::Dead, _) => (
            t("It failed", "Сталася помилка"),
            t("Look at the events of its run, then requeue it.", "Перегляньте події його запуску, тоді поверніть його в чергу."),
        ),
        (Status::Queued, Some(_)) => {
            let title = t("The last attempt failed", "Остання спроба завершилася помилкою");
            return Some(Advice {
                title,
                message: Note::plain(message),
                to_do: t("It is tried again by itself.", "Його буде повторено автоматично."),
                earlier: "",
                kind: "wait",
            });
        }
        _ => return None,
    };
    Some(Advice { title, message: Note::plain(message), to_do, earlier: "", kind: "bad" })
}

/// Whether the reason is that the provider of the model had no capacity. Such a failure passes by itself.
pub(crate) fn is_of_provider(reason: &AnyReason) -> bool {
    matches!(reason, Word::Known(Reason::RateLimited | Reason::Overloaded))
}

/// The advice on a task when an attempt before the last one failed because the provider had no capacity. The last attempt may have failed
/// for the same cause, but with another reason.
pub(crate) fn after_outage(lang: Lang, task: &Task<'_>) -> Option<Advice> {
    let has_failed = matches!(task.status, Word::Known(Status::Failed | Status::Dead));
    let is_told = task.failure.as_ref().is_some_and(|failure| is_of_provider(&failure.reason));
    let earlier = lang.t(
        " Earlier attempts failed because the provider had no room: see first whether it has room again.",
        " Попередні спроби завершилися помилкою, бо постачальник був перевантажений: спершу перевірте, чи це вже минуло.",
    );
    of(lang, task).map(|advice| Advice { earlier: if has_failed && !is_told { earlier } else { "" }, ..advice })
}

/// Whether the message says no more than the title and the facts of the task do.
fn is_told_by_title(task: &Task<'_>, waiting: &Waiting) -> bool {
    match waiting.reason {
        Word::Known(WaitingReason::DependsOn | WaitingReason::Suspended | WaitingReason::ExclusiveKey | WaitingReason::SessionOrder) => {
            true
        }
        // Only the message names the namespace, and says why slots stay taken.
        Word::Known(WaitingReason::NoWorker | WaitingReason::NoCapacity | WaitingReason::Cordoned) => {
            task.kubernetes.is_none() && !waiting.message.contains(';')
        }
        _ => false,
    }
}

fn cancelled(lang: Lang) -> (&'static str, &'static str) {
    (
        lang.t("It was cancelled", "Його скасовано"),
        lang.t("Requeue it to run it after all.", "Поверніть його в чергу, щоб усе-таки виконати."),
    )
}

fn waits(lang: Lang, reason: WaitingReason) -> (&'static str, &'static str) {
    let t = |english, ukrainian| lang.t(english, ukrainian);
    match reason {
        WaitingReason::NoWorker => (
            t("No worker serves its agent", "Жоден воркер не обслуговує його агента"),
            t(
                "Start an agent that serves it, or bring a worker back: see Workers.",
                "Запустіть агента, який його обслуговує, або поверніть воркер: див. «Воркери».",
            ),
        ),
        WaitingReason::Project => (
            t("No worker serves its project", "Жоден воркер не обслуговує його проєкт"),
            t(
                "Start an agent on a machine with git, or one that names the project: see Workers.",
                "Запустіть агента на машині з git або такого, що називає цей проєкт: див. «Воркери».",
            ),
        ),
        WaitingReason::NoCapacity => (
            t("All workers are busy", "Усі воркери зайняті"),
            t(
                "It runs when a slot is free. Add a worker if this takes too long.",
                "Воно виконається, коли звільниться слот. Додайте воркер, якщо це триває задовго.",
            ),
        ),
        WaitingReason::Cordoned => (
            t("Its workers are cordoned", "Його воркери закриті"),
            t("Uncordon a worker: see Workers.", "Відкрийте воркер: див. «Воркери»."),
        ),
        WaitingReason::WorkerPaused => (
            t("Its workers are paused", "Його воркери зупинені"),
            t(
                "See its workers for what to do, or start an agent with another account.",
                "На сторінці воркерів сказано, що робити; або запустіть агента з іншим обліковим записом.",
            ),
        ),
        WaitingReason::Suspended => {
            (t("It is suspended", "Його призупинено"), t("Resume it to let it run.", "Відновіть його, щоб воно виконалося."))
        }
        WaitingReason::NotBefore => {
            (t("It is not time yet", "Ще не час"), t("It runs by itself at its time.", "Воно виконається само у свій час."))
        }
        WaitingReason::DependsOn => (
            t("It waits for other tasks", "Воно очікує на інші завдання"),
            t(
                "It runs when they have completed, and is cancelled if one of them does not.",
                "Воно виконається, коли вони завершаться, і буде скасоване, якщо котресь із них не завершиться.",
            ),
        ),
        WaitingReason::ExclusiveKey => (
            t("Another task has its exclusive key", "Його винятковий ключ має інше завдання"),
            t("It runs when that task has ended.", "Воно виконається, коли те завдання закінчиться."),
        ),
        WaitingReason::SessionWorker => (
            t("The worker that has its conversation is busy or away", "Воркер, що має його розмову, зайнятий або відсутній"),
            t(
                "It runs there when a slot is free, and elsewhere if that takes too long.",
                "Воно виконається там, коли звільниться слот, або на іншому воркері, якщо це триватиме задовго.",
            ),
        ),
        WaitingReason::SessionOrder => (
            t("An earlier task of its context has not finished", "Попереднє завдання його контексту ще не закінчилося"),
            t("It runs when that task has ended.", "Воно виконається, коли те завдання закінчиться."),
        ),
        WaitingReason::Paused => (
            t("Its queue is paused", "Його чергу зупинено"),
            t("Resume the queue, or all queues: see Queues.", "Відновіть чергу або всі черги: див. «Черги»."),
        ),
        WaitingReason::Limit => (
            t("Its queue is at its limit", "Його черга досягла свого ліміту"),
            t("It runs when another task of the queue has ended.", "Воно виконається, коли закінчиться інше завдання черги."),
        ),
        WaitingReason::WorkerSilent => (
            t("Its worker is silent", "Його воркер мовчить"),
            t(
                "See whether its machine and its agent are up: see Workers. Otherwise it is tried again when its lease has ended.",
                "Перевірте, чи працюють його машина й агент: див. «Воркери». Інакше його буде повторено, коли закінчиться його оренда.",
            ),
        ),
        WaitingReason::NeedsHuman => (
            t("It needs your answer", "Потрібна ваша відповідь"),
            t(
                "Answer below. Without an answer, the tool is denied when the time is over.",
                "Дайте відповідь нижче. Без неї в інструменті буде відмовлено, коли мине час.",
            ),
        ),
    }
}

fn failed(lang: Lang, reason: Reason) -> (&'static str, &'static str) {
    let t = |english, ukrainian| lang.t(english, ukrainian);
    match reason {
        Reason::Timeout => (
            t("The run took longer than it may", "Запуск тривав довше, ніж дозволено"),
            t(
                "Requeue it with a larger time limit: type the limit beside the button “Requeue”.",
                "Поверніть його в чергу з більшим обмеженням часу: введіть обмеження біля кнопки «Повернути в чергу».",
            ),
        ),
        Reason::Stalled => (
            t("The run said nothing for too long", "Запуск задовго мовчав"),
            t("Look at its last events, then requeue it.", "Перегляньте його останні події, тоді поверніть його в чергу."),
        ),
        Reason::Cancelled => cancelled(lang),
        Reason::RateLimited | Reason::Overloaded => (
            t("The provider had no room", "Постачальник був перевантажений"),
            t("Requeue it when the provider has room again.", "Поверніть його в чергу, коли постачальник знову матиме змогу."),
        ),
        Reason::Auth => (
            t("The provider refused the worker's Claude account", "Постачальник відхилив обліковий запис Claude цього воркера"),
            t(
                "Sign in again on the worker, or correct the API key if its agent or the profile uses one. Then requeue it.",
                "Увійдіть знову на воркері або виправте ключ API, якщо його агент чи профіль ним користується. Тоді поверніть його в чергу.",
            ),
        ),
        Reason::Billing => (
            t("The worker's Claude account has no credit", "На обліковому записі Claude цього воркера немає коштів"),
            t("Top up the account, then requeue it.", "Поповніть рахунок, тоді поверніть його в чергу."),
        ),
        Reason::ModelUnavailable => (
            t("The model is not available", "Модель недоступна"),
            t("Submit it again with another model, or without one.", "Надішліть його знову з іншою моделлю або без неї."),
        ),
        Reason::BudgetExceeded => (
            t("It has cost its whole budget", "Воно витратило весь свій бюджет"),
            t(
                "Requeue it with a higher budget; without one, it has the same budget again. max_budget_usd of the agent's profile may be the limit, too.",
                "Поверніть його в чергу з більшим бюджетом; без нього воно знову матиме той самий. Межею може бути й max_budget_usd у профілі агента.",
            ),
        ),
        Reason::BadOutput => (
            t("The answer is not what was asked for", "Відповідь не така, як просили"),
            t(
                "It is empty, too long, or not the JSON that was asked for. Make the prompt clearer, then submit it again.",
                "Вона порожня, задовга або не є JSON, як просили. Сформулюйте промпт чіткіше й надішліть завдання знову.",
            ),
        ),
        Reason::ContextFull => (
            t("The conversation of its context is full", "Розмова його контексту заповнена"),
            t(
                "Make its prompt shorter, or reset its context. Then requeue it.",
                "Скоротіть промпт або скиньте його контекст. Тоді поверніть завдання в чергу.",
            ),
        ),
        Reason::InvalidRequest => (
            t("The API refuses the request", "API відхиляє запит"),
            t(
                "Do what the message says. If the conversation of its context is the cause, reset the context. Then requeue it.",
                "Зробіть те, що сказано в повідомленні. Якщо причина в розмові його контексту, скиньте контекст. Тоді поверніть завдання в чергу.",
            ),
        ),
        Reason::Refused => (
            t("The model refuses to answer", "Модель відмовляється відповідати"),
            t("Change the prompt or the model, then submit it again.", "Змініть промпт або модель, тоді надішліть завдання знову."),
        ),
        Reason::WorkerLost => (
            t("The worker was lost during the run", "Воркер зник під час запуску"),
            t(
                "Check the worker and its connection, then requeue it.",
                "Перевірте воркер і його з’єднання, тоді поверніть завдання в чергу.",
            ),
        ),
        Reason::SpawnFailed => (
            t("The run could not be started", "Не вдалося розпочати запуск"),
            t(
                "Check the agent's profile and its program on the worker, then requeue it.",
                "Перевірте профіль агента та його програму на воркері, тоді поверніть завдання в чергу.",
            ),
        ),
        Reason::DependencyFailed => (
            t("A task that it depends on did not complete", "Завдання, від якого воно залежить, не завершилося"),
            t("Requeue that task first, then this one.", "Спершу поверніть у чергу те завдання, потім це."),
        ),
        Reason::OutOfMemory => (
            t("The run needed more memory than it may use", "Запуску потрібно було більше пам’яті, ніж дозволено"),
            t(
                "Give the runs of its profile more memory, then requeue it.",
                "Дайте запускам його профілю більше пам’яті, тоді поверніть його в чергу.",
            ),
        ),
        Reason::WorkerDisk => (
            t("The worker's disk is full", "Диск воркера заповнений"),
            t("Make room on the worker's disk, then requeue it.", "Звільніть місце на диску воркера, тоді поверніть завдання в чергу."),
        ),
        Reason::DiskLimit => (
            t("The run took too much of the worker's disk", "Запуск зайняв забагато місця на диску воркера"),
            t(
                "Have it write less, or give the runs of its profile more room. What it has written is still there: do what the message says, then requeue it.",
                "Зробіть так, щоб він писав менше, або дайте запускам його профілю більше місця. Написане ще там: зробіть, що каже повідомлення, тоді поверніть завдання в чергу.",
            ),
        ),
        Reason::AgentError => (
            t("The agent ended with an error", "Агент завершився з помилкою"),
            t(
                "Do what the message says, or look at the events of its run. Then requeue it.",
                "Зробіть те, що сказано в повідомленні, або перегляньте події його запуску. Тоді поверніть завдання в чергу.",
            ),
        ),
        Reason::Project => (
            t("Its repository could not be used", "Не вдалося скористатися його репозиторієм"),
            t(
                "Do what the message says. To begin with another ref, submit it again with that one. If the repository, the worker's git or its directory of the context was mended, requeue it.",
                "Зробіть те, що сказано в повідомленні. Щоб почати з іншої гілки, тега чи коміту, надішліть завдання знову з ними. Якщо виправлено репозиторій, git на воркері або його каталог контексту, поверніть завдання в чергу.",
            ),
        ),
        Reason::BadInput => (
            t("A file that the task is to have could not be put in its place", "Не вдалося покласти на місце файл, потрібний завданню"),
            t(
                "Give the input another path, or upload the file again, as the message says, and submit the task again.",
                "Дайте файлу інший шлях або завантажте його знову, як сказано в повідомленні, і надішліть завдання ще раз.",
            ),
        ),
    }
}

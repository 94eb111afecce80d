//! The scopes of keys, as the pages explain them.

use super::lang::Lang;
use bloom_core::api_key::Scope;

/// What a key of this scope may do, in one line.
pub(crate) fn opens(lang: Lang, scope: Scope) -> &'static str {
    match scope {
        Scope::Admin => lang.t("Everything, keys too.", "Усе, зокрема ключі."),
        Scope::Submit => lang.t(
            "For a program: creates tasks, sees and changes only those that it created.",
            "Для програми: створює завдання, бачить і змінює лише створені ним.",
        ),
        Scope::Member => lang.t(
            "For a person of a team: creates tasks, sees and changes those of the team; sees projects, workers, and the team’s queues and usage.",
            "Для учасника команди: створює завдання, бачить і змінює завдання команди; бачить проєкти, воркери, черги та витрати команди.",
        ),
        Scope::Worker => lang.t(
            "For the agent of one worker: takes tasks and reports on them. It can’t sign in here.",
            "Для агента одного воркера: бере завдання та звітує про них. Увійти сюди з ним не можна.",
        ),
        Scope::Read => lang.t("Sees everything except keys, and changes nothing.", "Бачить усе, крім ключів, і нічого не змінює."),
        Scope::Join => lang.t(
            "For a new machine: its agent exchanges it for the key of one worker, once.",
            "Для нової машини: її агент один раз обмінює його на ключ одного воркера.",
        ),
    }
}

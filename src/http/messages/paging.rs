//! Pages of lists: which rows are read, and the link to the next page.

use uuid::Uuid;

use crate::messages::error::Error;
use bloom_api::lists::Params;
use bloom_store::Page;

/// The page to read: one row more than is shown, to find out whether there is a next page.
pub(crate) fn page_of(params: &Params) -> Result<Page, Error> {
    Ok(Page { limit: params.limit() + 1, before: params.cursor()? })
}

/// Removes the extra row that [`page_of`] asked for. Returns the link to the next page, if there is one.
pub(crate) fn cut<T>(rows: &mut Vec<T>, is_short: bool, params: &Params, path: &str, id: fn(&T) -> Uuid) -> Option<String> {
    let limit = params.limit() as usize;
    let more = is_short || rows.len() > limit;
    rows.truncate(limit);
    rows.last().filter(|_| more).map(|last| params.next_link(path, &id(last).to_string()))
}

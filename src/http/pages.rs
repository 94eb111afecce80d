//! The pages for browsers. Another crate makes them; this is what it hands to the server.

use std::sync::Arc;

use axum::Router;
use axum::http::Method;
use axum::routing::MethodRouter;

use crate::AppState;
use crate::identity::policy::{Rate, RoutePolicy};
use crate::openapi::description::Routes;

/// Who keeps a page open sends many requests, which must not use up the limit of calls. Without a session there is nothing to see.
const LOOK: RoutePolicy = RoutePolicy::OPEN.rate(Rate::Worker);
/// Signing in is limited as requests with keys are, and so are the other forms.
const SEND: RoutePolicy = RoutePolicy::OPEN.rate(Rate::General).takes_form();

/// The pages for browsers, which are added to the routes of the API.
pub struct Pages {
    routes: Vec<Page>,
    /// What happens to all requests and answers, those of the API too, with the [root](crate::Api::root) of the server.
    pub finish: fn(Router, Arc<str>) -> Router,
}

struct Page {
    path: &'static str,
    handlers: MethodRouter<AppState>,
    policies: Vec<(Method, RoutePolicy)>,
}

impl Pages {
    /// No pages yet. `finish` is called for the whole router, see [`Pages::finish`].
    pub fn new(finish: fn(Router, Arc<str>) -> Router) -> Self {
        Self { routes: Vec::new(), finish }
    }

    /// A page that only shows something.
    pub fn look(self, path: &'static str, handlers: MethodRouter<AppState>) -> Self {
        self.add(path, handlers, vec![(Method::GET, LOOK)])
    }

    /// A page that takes a form, at the address where it is shown.
    pub fn form(self, path: &'static str, handlers: MethodRouter<AppState>) -> Self {
        self.add(path, handlers, vec![(Method::GET, LOOK), (Method::POST, SEND)])
    }

    /// A page whose form creates tasks.
    pub fn creation(self, path: &'static str, handlers: MethodRouter<AppState>) -> Self {
        self.add(path, handlers, vec![(Method::GET, LOOK), (Method::POST, SEND.begins_trace())])
    }

    /// A button that tests the connection to the control plane.
    pub fn test(self, path: &'static str, handlers: MethodRouter<AppState>) -> Self {
        self.add(path, handlers, vec![(Method::POST, SEND.rate(Rate::TestConnection))])
    }

    /// A stream, which does not end by itself.
    pub fn stream(self, path: &'static str, handlers: MethodRouter<AppState>) -> Self {
        self.add(path, handlers, vec![(Method::GET, LOOK.waits())])
    }

    /// A file that is the same for everybody.
    pub fn file(self, path: &'static str, handlers: MethodRouter<AppState>) -> Self {
        self.add(path, handlers, vec![(Method::GET, RoutePolicy::OPEN)])
    }

    fn add(mut self, path: &'static str, handlers: MethodRouter<AppState>, policies: Vec<(Method, RoutePolicy)>) -> Self {
        self.routes.push(Page { path, handlers, policies });
        self
    }

    pub(crate) fn add_to(self, routes: Routes) -> Routes {
        self.routes.into_iter().fold(routes, |routes, page| routes.add_undescribed(page.path, page.handlers, &page.policies))
    }
}

//! The interface by which another crate adds the pages for browsers to the server.

use std::sync::Arc;

use axum::Router;
use axum::http::Method;
use axum::routing::MethodRouter;

use crate::AppState;
use crate::identity::policy::{Rate, RoutePolicy};
use crate::openapi::description::Routes;

/// An open page sends many requests, which must not use up the general limit. The route is open because without a session there is nothing
/// to see.
const LOOK: RoutePolicy = RoutePolicy::OPEN.rate(Rate::Worker);
/// Signing in and all other forms are limited like requests with keys.
const SEND: RoutePolicy = RoutePolicy::OPEN.rate(Rate::General).takes_form();

/// The pages for browsers, which are added to the routes of the API.
pub struct Pages {
    routes: Vec<Page>,
    /// Adds layers around the whole router, including the API. Its second argument is the [root](crate::Api::root) of the server.
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

    /// Adds a page that only shows something.
    pub fn look(self, path: &'static str, handlers: MethodRouter<AppState>) -> Self {
        self.add(path, handlers, vec![(Method::GET, LOOK)])
    }

    /// Adds a page with a form that is sent to the address of the page.
    pub fn form(self, path: &'static str, handlers: MethodRouter<AppState>) -> Self {
        self.add(path, handlers, vec![(Method::GET, LOOK), (Method::POST, SEND)])
    }

    /// Adds a page whose form creates tasks.
    pub fn creation(self, path: &'static str, handlers: MethodRouter<AppState>) -> Self {
        self.add(path, handlers, vec![(Method::GET, LOOK), (Method::POST, SEND.begins_trace())])
    }

    /// Adds the route of a button that tests the connection to the control plane.
    pub fn test(self, path: &'static str, handlers: MethodRouter<AppState>) -> Self {
        self.add(path, handlers, vec![(Method::POST, SEND.rate(Rate::TestConnection))])
    }

    /// Adds a stream, which does not end by itself.
    pub fn stream(self, path: &'static str, handlers: MethodRouter<AppState>) -> Self {
        self.add(path, handlers, vec![(Method::GET, LOOK.waits())])
    }

    /// Adds a file that is the same for everybody.
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

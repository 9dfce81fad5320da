// Browsers start no workers on pages of file://, so the worker of the search runs in a hidden frame there.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.page = frame.contentWindow
      const load = url => new Promise((resolve, reject) => {
        const script = this.page.document.createElement("script")
        Object.assign(script, { src: url, onload: resolve, onerror: reject })
        this.page.document.body.appendChild(script)
      })
      this.page.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.page.importScripts = (...urls) => urls.reduce((last, next) => last.then(() => load(next)), Promise.resolve())
      this.loaded = load(url)
    }
    postMessage(data) {
      this.loaded.then(() => this.page.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {
      this.page.frameElement.remove()
    }
  }

import{a as S,b as k,c as P}from"./chunk-FXCU7NM7.js";import{a as x}from"./chunk-4PC5ZWBK.js";import{a as C,b as g,d as v}from"./chunk-WNGSQWLA.js";import{d as h}from"./chunk-E3BQTMXS.js";import{a as b,c as M,e as w}from"./chunk-CEAMIZB5.js";import{g as f}from"./chunk-D7T4XN55.js";var R=`/* The strip of token times and its words. */

.timing {
  max-width: 46rem;
  margin: 0.3rem 0 0.6rem;
  padding: 0.6rem 0.8rem;
  border: 1px solid var(--line);
  border-radius: var(--radius);
}

.timing-title {
  color: var(--ink);
  font-size: 0.82rem;
}

.timing-title span {
  color: var(--faint);
}

.timing .strip {
  display: block;
  width: 100%;
  height: 64px;
  margin: 0.5rem 0 0.3rem;
  cursor: crosshair;
}

.timing-why {
  margin-top: 0.3rem;
}

.timing-words {
  min-height: 1.6em;
}
`;function p({times:e,now:n}){if(n!==null)return{from:Math.max(0,n-12e3),to:Math.max(n,1e3)};let[t,o]=[e[0]??0,e.at(-2)??0],r=Math.max(20,(o-t)*.01);return{from:Math.max(0,t-r),to:o+r}}function _(e,n,t){let o=(n-e)/Math.max(1,t),r=10**Math.floor(Math.log10(Math.max(1,o))),a=([1,2,5,10].find(s=>s*r>=o)??10)*r,i=[];for(let s=Math.ceil(e/a)*a;s<=n;s+=a)i.push(s);return i}function $(e,n){if(e.length<2)return null;let[t,o]=[0,e.length/2-1];for(;t<o;){let a=t+o>>1;(e[2*a]??0)<n?t=a+1:o=a}let r=t>0&&n-(e[2*t-2]??0)<(e[2*t]??0)-n?t-1:t;return y(e,r)}function y(e,n){let[t,o]=[e[2*n],e[2*n+1]];if(t===void 0||o===void 0)return null;let r=0;for(let a=1;a<=2*n+1;a+=2)r+=e[a]??0;return{at:t,tokens:o,gap:n===0?null:t-(e[2*n-2]??0),total:r}}function A(e){let n=[];for(let o=2;o<e.length;o+=2)n.push((e[o]??0)-(e[o-2]??0));n.sort((o,r)=>o-r);let t=o=>n[Math.min(n.length-1,Math.floor(o*n.length))]??0;return n.length===0?null:{median:t(.5),p95:t(.95),longest:n.at(-1)??0}}function O(e,n,t){let o=e.getContext("2d");if(o===null)return;let r=globalThis.devicePixelRatio||1,[a,i]=[e.clientWidth,e.clientHeight];e.width=Math.round(a*r),e.height=Math.round(i*r),o.scale(r,r);let s=D(e),{from:l,to:u}=p(n),m=d=>(d-l)/Math.max(1,u-l)*a,c=i-18;H(o,n.pauses,m,c,s),I(o,n.times,m,{from:l,to:u,bottom:c},s),X(o,{from:l,to:u,width:a,bottom:c},m,s),t&&F(o,m(t.at),c,s)}function D(e){let n=getComputedStyle(e),t=u=>(e.style.color=`var(--${u})`,n.color),[o,r,a]=[t("accent"),t("danger"),t("warn")],[i,s,l]=[t("line"),t("faint"),t("ink")];return{accent:o,danger:r,warn:a,line:i,faint:s,ink:l,font:n.fontFamily}}function E(e,n){return e==="network"?n.danger:e==="engine"?n.accent:n.warn}function H(e,n,t,o,r){for(let{from:a,ms:i,cause:s}of n)e.globalAlpha=.18,e.fillStyle=E(s,r),e.fillRect(t(a),0,t(a+i)-t(a),o);e.globalAlpha=1}function I(e,n,t,{from:o,to:r,bottom:a},i){e.fillStyle=i.accent,e.globalAlpha=n.length>800?.35:.8;for(let s=0;s<n.length;s+=2){let l=n[s]??0,u=n[s+1]??1,m=Math.min(a-6,10+5*u);l>=o&&l<=r&&e.fillRect(t(l),a-m,1.25,m)}e.globalAlpha=1}function X(e,{from:n,to:t,width:o,bottom:r},a,i){e.fillStyle=i.line,e.fillRect(0,r,o,1),e.font=`11px ${i.font}`,e.textBaseline="top";let s=_(n,t,Math.max(2,Math.floor(o/80))),l=s.some(u=>u%1e3!==0)?s.some(u=>u%100!==0)?2:1:0;for(let u of s){let m=a(u);e.fillStyle=i.line,e.fillRect(m,r,1,4),e.fillStyle=i.faint;let c=`${(u/1e3).toFixed(l)} s`,d=e.measureText(c).width/2;e.fillText(c,Math.min(Math.max(0,m-d),o-2*d),r+5)}}function F(e,n,t,o){e.fillStyle=o.ink,e.fillRect(n-.5,0,2,t)}x(R);function ee({live:e,wantsSse:n}){let t=C(e,"facts","state","pause","cause"),o=w(null),[r,a]=b(null),i=T(e);M(()=>{let l=o.current;if(l===null)return;let u=()=>O(l,T(e),r);u();let m=new ResizeObserver(u);return m.observe(l),()=>m.disconnect()});let s=l=>{let{left:u,width:m}=l.currentTarget.getBoundingClientRect(),{from:c,to:d}=p(i);a($(i.times,c+(l.clientX-u)/Math.max(1,m)*(d-c)))};return f("div",{class:"timing",children:[f("p",{class:"timing-title",children:["When tokens were shown"," ",f("span",{children:h(t.state)?"each line is a token; the last 12 s":"each line is a token; seconds after the question"})]}),f("canvas",{ref:o,class:"strip",tabIndex:0,role:"img","aria-label":`When tokens were shown. ${L(t)}`,onPointerMove:s,onPointerLeave:()=>a(null),onKeyDown:l=>N(l,i.times,r,a)}),f("p",{class:"timing-words",children:r?z(t,r):L(t)}),t.facts.transport==="sse"&&f("p",{class:"timing-why",children:f(S,{text:P(k(n))})})]})}function T(e){let{facts:n,state:t}=e.message;return{times:n.times,pauses:n.pauses,now:h(t)?performance.now()-e.askedAt:null}}function N(e,n,t,o){let r=e.key==="ArrowRight"?1:e.key==="ArrowLeft"?-1:0;if(r===0)return;e.preventDefault();let a=0;for(;t&&a<n.length/2&&(n[2*a]??0)<t.at;)a+=1;o(y(n,t?a+r:0)??t)}function z({facts:e},{at:n,tokens:t,gap:o,total:r}){let a=t===1?`Token ${r}`:`Tokens ${r-t+1} to ${r}`,i=o===null?"":`, ${g(o)} after the one before`,s=e.pauses.find(({from:l,ms:u})=>Math.abs(l+u-n)<2);return`${a} at ${(n/1e3).toFixed(2)} s${i}${s?` (${v(s.cause)})`:""}`}function L({facts:e}){let n=A(e.times);return n===null?"One token.":`Gaps: half under ${g(Math.max(1,n.median))}, 95 % under ${g(Math.max(1,n.p95))}, the longest ${g(n.longest)}`}export{ee as Timing};

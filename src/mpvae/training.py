"""The training loop of one network."""
import math
from dataclasses import dataclass, field
import numpy as np, torch, copy
from torch import Tensor
from mpvae import losses, probit
from mpvae.networks import MPVAE
def predict(net,X,zd=0):
    net.eval()
    with torch.inference_mode():
        p=net.prior(X)
        if zd==0: return probit.marginal_prob(net.decode(X,p.mean),net.B)
        eng=torch.quasirandom.SobolEngine(p.mean.shape[1],scramble=True,seed=0)
        e=torch.special.ndtri(eng.draw(zd).clamp(1e-6,1-1e-6))
        return torch.stack([probit.marginal_prob(net.decode(X,p.mean+p.stddev*ei),net.B) for ei in e]).mean(0)
def fit(net,X,Y,s,Xv,Yv,seed=0,steps=None,log=None):
    g=torch.Generator().manual_seed(seed)
    N=len(X); nb=math.ceil(N/s.batch_size); total=s.max_epochs*nb
    opt=torch.optim.Adam(net.parameters(),lr=s.lr,weight_decay=s.weight_decay,fused=True)
    best=(1e9,None,0)
    step=0
    hist=[]
    for ep in range(s.max_epochs):
        net.train()
        for idx in torch.randperm(N,generator=g).split(s.batch_size):
            if len(idx)<2: continue
            lr=s.lr*(.5*(1+math.cos(math.pi*step/total)) if s.lr_schedule=='cosine' else 1.); step+=1
            for gr in opt.param_groups: gr['lr']=lr
            x=X[idx];y=Y[idx]
            u=torch.randn(len(idx),s.n_draws//2 if s.antithetic else s.n_draws,s.n_factors,generator=g)
            eps=torch.randn(len(idx),s.latent_dim,generator=g)
            b=net(x,y,eps)
            L=losses.mpvae_loss(b,net.B,u,y,torch.ones(len(idx)),s)
            opt.zero_grad(); L.total.backward(); opt.step()
        p=predict(net,Xv).double().clamp(1e-7,1-1e-7)
        ll=-(Yv*p.log()+(1-Yv)*(1-p).log()).mean().item()
        hist.append(ll)
        if ll<best[0]: best=(ll,copy.deepcopy(net.state_dict()),ep)
        if s.patience and ep-best[2]>=s.patience: break
    net.load_state_dict(best[1]); return best[0],best[2],ep
